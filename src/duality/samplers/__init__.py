"""Ways to write: one file each. ``SAMPLERS`` feeds the common tests; a new one goes there too."""

from duality.samplers.ancestral import Ancestral

SAMPLERS: tuple[type, ...] = (Ancestral,)

__all__ = ["SAMPLERS", "Ancestral"]
