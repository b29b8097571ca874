"""Networks: a frozen configuration with ``build(num_states, ...)``, and the module that it builds.

    dit            the diffusion transformer of the paper, and its causal and vector-input variants
    layers         what networks are made of
    residual       x + gate * dropout(update), by a kernel on a GPU
    uninitialised  networks without numbers, whose shapes are read

A second backbone is one new file and one line in ``BACKBONES``; its ready-made sizes are one line each in ``SIZES``,
for ``--set backbone=NAME``. The module must satisfy ``protocols.Network``; it refuses what it does not have.
"""

from duality.registry import Registry

BACKBONES = Registry("backbone", {"DiT": "duality.networks.dit:DiT"})
# From the smallest to the largest.
SIZES = Registry(
    "size",
    {
        "nano": "duality.networks.dit:nano",
        "micro": "duality.networks.dit:micro",
        "mini": "duality.networks.dit:mini",
        "small": "duality.networks.dit:small",
        "medium": "duality.networks.dit:medium",
    },
)
