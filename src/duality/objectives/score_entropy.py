"""SEDD: score entropy, the continuous-time bound of a network that answers with ratios q(y) / q(z).

The same bound as MDLM's and Duo's, in another parametrisation: any positive ratios will do, they need not belong to a
belief. Closed forms of its sum over the data's ratios for either process are in ``formulas``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality.diffusion import posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.fused.formulas import AbsorbingScoreEntropy, UniformScoreEntropy
from duality.fused.lazy import ratios_of
from duality.fused.loss import fused_loss
from duality.noise import Noise
from duality.objectives.base import both, dropout_of, end_terms
from duality.protocols import Ends, Kind, Loss, Schedule, Score


@dataclass(frozen=True)
class ScoreEntropy:
    """E_t of the score entropy, for uniform or absorbing noise."""

    process: Uniform | Absorbing
    schedule: Schedule
    kind: Kind = "bound"

    def __call__(
        self, denoiser: Score, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss:
        alpha = self.schedule.alpha(t)
        z = self.process.corrupt(x, alpha, noise)
        ratios = ratios_of(denoiser, z, alpha, mask, dropout_of(noise, dropout))
        level, slope = alpha[:, None], self.schedule.alpha_prime(t)[:, None]
        if isinstance(self.process, Absorbing):
            return fused_loss(ratios, AbsorbingScoreEntropy(x, level, slope), both(z == self.process.mask_id, mask))
        return fused_loss(ratios, UniformScoreEntropy(x, z, level, slope, self.process.vocab_size), mask)

    def ends(self, denoiser: Score, x: Tensor, noise: Noise, mask: Tensor | None = None) -> Ends:
        def reconstruct(z: Tensor, alpha: Tensor) -> Tensor:
            ratios = ratios_of(denoiser, z, alpha, mask).log_ratios()
            prior = self.process.prior().to(x.device)
            probs = posterior.analytic(ratios, z, alpha[:, None], alpha.new_ones(len(x), 1), prior)
            if isinstance(self.process, Absorbing):
                probs = probs[..., : self.process.mask_id]
            return probs.sum(-1).log() - probs.gather(-1, x[..., None])[..., 0].log()

        return end_terms(self.process, self.schedule, x, noise, reconstruct)
