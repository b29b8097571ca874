"""The continuous-time bound on the negative log-likelihood (NELBO) of uniform-state diffusion.

Corrupt x at the level alpha(t), ask for the belief, pay the closed form. Its mean over t in (0, 1) plus the two end
terms bounds -log p(x): it trains a model and measures it. It is Duo's Rao-Blackwellised form, which makes no K-vector
of the data; UDLM's, which does, is the same number computed in another way (tests/test_closed_forms.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality.fused.formulas import UniformBound
from duality.objectives.base import BeliefBound


@dataclass(frozen=True)
class Bound(BeliefBound):
    """E_t of the Rao-Blackwellised bound, for uniform noise."""

    def formula(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> UniformBound:
        return UniformBound(x, z, alpha, alpha_prime, self.process.vocab_size)
