"""MDLM: the continuous-time bound of absorbing noise, a weighted cross-entropy of the hidden tokens.

-alpha'/(1 - alpha) (-log p_x)  where z is the mask, 0 elsewhere
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality.diffusion import closed_forms
from duality.fused.formulas import Surprisal
from duality.objectives.base import BeliefBound


@dataclass(frozen=True)
class MaskedBound(BeliefBound):
    """E_t of the bound, for absorbing noise."""

    def formula(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Surprisal:
        return Surprisal(x, closed_forms.absorbing_weight(alpha, alpha_prime))

    def pays(self, z: Tensor) -> Tensor:
        # the mask is what the prior is sure of
        return self.process.prior_of(z) > 0
