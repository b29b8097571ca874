"""MDLM: the continuous-time bound of absorbing noise, a weighted cross-entropy of the hidden tokens.

-alpha'/(1 - alpha) (-log p_x)  where z is the mask, 0 elsewhere
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality import functional
from duality.bounds import belief_reconstruction, dropout_of, end_terms, summed
from duality.noise import Noise
from duality.processes import Absorbing
from duality.protocols import Denoiser, Ends, Kind, Loss, Schedule


@dataclass(frozen=True)
class MaskedBound:
    """E_t of the bound, for absorbing noise."""

    process: Absorbing
    schedule: Schedule
    kind: Kind = "bound"

    def __call__(
        self, denoiser: Denoiser, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss:
        alpha = self.schedule.alpha(t)
        z = self.process.corrupt(x, alpha, noise)
        log_p = denoiser.log_probs(z, alpha, mask, dropout_of(noise, dropout))
        hidden, slope = z == self.process.mask_id, self.schedule.alpha_prime(t)[:, None]
        return summed(functional.absorbing_bound(log_p, x, hidden, alpha[:, None], slope), mask)

    def ends(self, denoiser: Denoiser, x: Tensor, noise: Noise, mask: Tensor | None = None) -> Ends:
        reconstruct = belief_reconstruction(denoiser, self.process, x, mask)
        return end_terms(self.process, self.schedule, x, noise, reconstruct)
