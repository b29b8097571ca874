"""The continuous-time bound on the negative log-likelihood (NELBO) of uniform-state diffusion.

Corrupt x at the level alpha(t), ask for the belief, pay the closed form. Its mean over t in (0, 1) plus the two end
terms bounds -log p(x): it trains a model and measures it. ``Bound`` is Duo's Rao-Blackwellised form, which makes no
K-vector of the data; ``DenseBound`` is UDLM's, which does. The two are the same number computed in two ways
(tests/test_closed_forms.py), so what differs between them is memory, time and rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality import functional
from duality.bounds import BeliefBound


@dataclass(frozen=True)
class Bound(BeliefBound):
    """E_t of the Rao-Blackwellised bound, for uniform noise."""

    def nats(self, log_p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
        return functional.uniform_bound(log_p, x, z, alpha, alpha_prime)


@dataclass(frozen=True)
class DenseBound(BeliefBound):
    """E_t of UDLM's bound, for uniform noise: the same value, with dense K-vectors in the network's precision."""

    def nats(self, log_p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
        return functional.dense_uniform_bound(log_p, x, z, alpha, alpha_prime)
