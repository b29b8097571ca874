"""The continuous-time bound on the negative log-likelihood (NELBO) of a model with a belief, for any process.

Corrupt x at the level alpha(t), compute the belief and the loss of the process. Its mean over t in (0, 1) plus
the two end terms bounds -log p(x): it trains a model and measures it. The process decides the formula:

    Uniform      Duo's Rao-Blackwellised closed form, equal to UDLM's dense one
    Absorbing    MDLM's weighted cross-entropy, -alpha'/(1 - alpha) (-log p_x) at mask tokens and 0 elsewhere
    any other    the general bound, which needs only the prior
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality.diffusion import posterior
from duality.diffusion.processes import prior_on
from duality.fused.loss import fused_loss
from duality.fused.process_formulas import formulas_of
from duality.noise import Noise
from duality.objectives.base import belief_in, dropout_of, end_terms, intersection
from duality.protocols import AnyDenoiser, Ends, Kind, Loss, Process, Schedule, Valid


@dataclass(frozen=True)
class ContinuousTimeBound:
    """E_t of the continuous-time bound of ``process``."""

    process: Process
    schedule: Schedule
    kind: Kind = "bound"

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        alpha, alpha_prime = self.schedule.alpha(t), self.schedule.alpha_prime(t)
        z = self.process.corrupt(x, alpha, noise)
        belief = belief_in(self.process, denoiser, z, alpha, valid, dropout_of(noise, dropout))
        formulas = formulas_of(self.process)
        formula = formulas.bound(x, z, alpha[:, None], alpha_prime[:, None])
        return fused_loss(belief, formula, intersection(formulas.loss_positions(z), valid))

    def ends(self, denoiser: AnyDenoiser, x: Tensor, noise: Noise, valid: Valid = None) -> Ends:
        def reconstruct(z: Tensor, alpha: Tensor) -> Tensor:
            p = belief_in(self.process, denoiser, z, alpha, valid).log_probs().double().exp()
            return posterior.reconstruction(p, x, z, alpha[:, None], prior_on(self.process, x.device))

        return end_terms(self.process, self.schedule, x, noise, reconstruct)
