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
from duality.bounds import ask, belief_ends, summed
from duality.noise import Noise
from duality.processes import Uniform
from duality.protocols import Denoiser, Ends, Kind, Loss, Schedule


@dataclass(frozen=True)
class Bound:
    """E_t of the Rao-Blackwellised bound, for uniform noise."""

    process: Uniform
    schedule: Schedule
    kind: Kind = "bound"

    def __call__(
        self, denoiser: Denoiser, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss:
        asked = ask(denoiser, self.process, self.schedule, x, t, noise, mask, dropout)
        nats = functional.uniform_bound(asked.log_p, x, asked.z, asked.alpha, asked.alpha_prime)
        return summed(nats, mask)

    def ends(self, denoiser: Denoiser, x: Tensor, noise: Noise, mask: Tensor | None = None) -> Ends:
        return belief_ends(denoiser, self.process, self.schedule, x, noise, mask)


@dataclass(frozen=True)
class DenseBound:
    """E_t of UDLM's bound, for uniform noise: the same value, with dense K-vectors in the network's precision."""

    process: Uniform
    schedule: Schedule
    kind: Kind = "bound"

    def __call__(
        self, denoiser: Denoiser, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss:
        asked = ask(denoiser, self.process, self.schedule, x, t, noise, mask, dropout)
        nats = functional.dense_uniform_bound(asked.log_p, x, asked.z, asked.alpha, asked.alpha_prime)
        return summed(nats, mask)

    def ends(self, denoiser: Denoiser, x: Tensor, noise: Noise, mask: Tensor | None = None) -> Ends:
        return belief_ends(denoiser, self.process, self.schedule, x, noise, mask)
