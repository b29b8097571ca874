"""Where noise goes and how fast: processes, schedules, the Gaussian dual, and the formulas of the family.

processes      Uniform, Absorbing, GaussianUniform: where noise goes
schedules      LogLinear, Cosine, Polynomial, Dual: how fast
gaussian       the dual: T, its slope and inverse; sparse tempered latents; coupled argmax pairs
posterior      marginal, posterior, its three routes, evidence, ratios
closed_forms   the bounds, in general and in closed form
draws          exact draws from categorical laws
vectors        Gaussian diffusion over vectors
"""

from typing import Literal

from duality.registry import Registry

Divergence = Literal["kl-backward", "kl-forward", "mse", "tvd"]
Compare = Literal["posterior", "output"]

PROCESSES = Registry(
    "process",
    {
        "uniform": "duality.diffusion.processes:Uniform",
        "absorbing": "duality.diffusion.processes:Absorbing",
    },
)
SCHEDULES = Registry(
    "schedule",
    {
        "LogLinear": "duality.diffusion.schedules:LogLinear",
        "Cosine": "duality.diffusion.schedules:Cosine",
        "Polynomial": "duality.diffusion.schedules:Polynomial",
    },
)
GAUSSIAN_SCHEDULES = Registry(
    "Gaussian schedule",
    {
        "LinearVariance": "duality.diffusion.schedules:LinearVariance",
        "LinearSignal": "duality.diffusion.schedules:LinearSignal",
        "LinearLogSnr": "duality.diffusion.schedules:LinearLogSnr",
    },
)
