"""Ways to learn: one file each."""

from duality.objectives.curriculum import TemperedBound
from duality.objectives.discrete_time import DiscreteTime
from duality.objectives.masked import MaskedBound
from duality.objectives.nelbo import Bound
from duality.objectives.next_token import NextToken
from duality.objectives.score_entropy import ScoreEntropy

OBJECTIVES: tuple[type, ...] = (Bound, TemperedBound, MaskedBound, ScoreEntropy, DiscreteTime, NextToken)
