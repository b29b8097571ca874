"""MDLM: the continuous-time bound of absorbing noise, a weighted cross-entropy of the hidden tokens.

-alpha'/(1 - alpha) (-log p_x)  where z is the mask, 0 elsewhere
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality import functional
from duality.bounds import ask, belief_ends, summed
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
        asked = ask(denoiser, self.process, self.schedule, x, t, noise, mask, dropout)
        hidden = asked.z == self.process.mask_id
        nats = functional.absorbing_bound(asked.log_p, x, hidden, asked.alpha, asked.alpha_prime)
        return summed(nats, mask)

    def ends(self, denoiser: Denoiser, x: Tensor, noise: Noise, mask: Tensor | None = None) -> Ends:
        return belief_ends(denoiser, self.process, self.schedule, x, noise, mask)
