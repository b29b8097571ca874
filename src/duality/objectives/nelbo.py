"""The continuous-time bound on the negative log-likelihood (NELBO) of uniform-state diffusion.

Corrupt x at the level alpha(t), ask for the belief, pay the closed form of ``functional.uniform_bound``. Its mean over
t in (0, 1) plus the two end terms bounds -log p(x): it trains a model and measures it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality import functional
from duality.noise import Noise
from duality.processes import Uniform
from duality.protocols import Denoiser, Loss, Schedule


@dataclass(frozen=True)
class Bound:
    """E_t of the Rao-Blackwellised bound, for uniform noise."""

    process: Uniform
    schedule: Schedule

    def __call__(
        self, denoiser: Denoiser, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss:
        alpha = self.schedule.alpha(t)
        z = self.process.corrupt(x, alpha, noise)
        log_p = denoiser.log_probs(z, alpha, mask, noise.fold("dropout") if dropout else None)
        nats = functional.uniform_bound(log_p, x, z, alpha[:, None], self.schedule.alpha_prime(t)[:, None])
        if mask is not None:
            nats = nats * mask
        return Loss(nats.sum(), nats.detach())
