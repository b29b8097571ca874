"""Ways to learn: one file each. ``OBJECTIVES`` feeds the common tests; a new one goes there too."""

from duality.objectives.curriculum import TemperedBound
from duality.objectives.nelbo import Bound

OBJECTIVES: tuple[type, ...] = (Bound, TemperedBound)

__all__ = ["OBJECTIVES", "Bound", "TemperedBound"]
