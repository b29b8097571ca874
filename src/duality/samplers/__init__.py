"""How a model writes: one file for each sampler, their common part in ``base``, time grids, and the one loop.

    ancestral        the plug-in posterior, for any process
    psi              the same, with new noise for a share of the tokens
    analytic         SEDD's steps, for score models
    autoregressive   left to right
    gaussian         vectors instead of tokens
    grids            where the steps are
    generate         the only sampling loop

``SAMPLERS`` are those that a user can choose by name for a model with a discrete process.
"""

from duality.registry import Registry

SAMPLERS = Registry(
    "sampler",
    {
        "ancestral": "duality.samplers.ancestral:Ancestral",
        "analytic": "duality.samplers.analytic:Analytic",
        "psi-constant": "duality.samplers.psi:constant",
        "psi-cap": "duality.samplers.psi:cap",
        "psi-rescale": "duality.samplers.psi:rescale",
        "psi-loop": "duality.samplers.psi:loop",
        "psi-mix": "duality.samplers.psi:mix",
    },
)
GRIDS = Registry(
    "grid",
    {
        "linear": "duality.samplers.grids:Linear",
        "cosine": "duality.samplers.grids:Cosine",
        "loop": "duality.samplers.grids:LinearConstantLinear",
    },
)
