"""Ways to learn: one file each. A new one goes into ``OBJECTIVES``: a test asks that some recipe trains with each.

``Consistency`` and ``ThroughTime`` learn from a teacher; ``distillation.py`` builds them, and has tests of its own.
"""

from duality.objectives.autoregressive import NextToken
from duality.objectives.consistency import Consistency
from duality.objectives.curriculum import TemperedBound
from duality.objectives.discrete_time import DiscreteTime
from duality.objectives.masked import MaskedBound
from duality.objectives.nelbo import Bound
from duality.objectives.score_entropy import ScoreEntropy
from duality.objectives.sdtt import ThroughTime

OBJECTIVES: tuple[type, ...] = (Bound, TemperedBound, MaskedBound, ScoreEntropy, DiscreteTime, NextToken)

__all__ = [
    "OBJECTIVES",
    "Bound",
    "Consistency",
    "DiscreteTime",
    "MaskedBound",
    "NextToken",
    "ScoreEntropy",
    "TemperedBound",
    "ThroughTime",
]
