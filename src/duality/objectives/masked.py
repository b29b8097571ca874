"""MDLM: the continuous-time bound of absorbing noise, a weighted cross-entropy of the hidden tokens.

-alpha'/(1 - alpha) (-log p_x)  where z is the mask, 0 elsewhere
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality import functional
from duality.bounds import BeliefBound


@dataclass(frozen=True)
class MaskedBound(BeliefBound):
    """E_t of the bound, for absorbing noise."""

    def nats(self, log_p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
        # the mask is what the prior is sure of
        return functional.absorbing_bound(log_p, x, self.process.prior_of(z) > 0, alpha, alpha_prime)
