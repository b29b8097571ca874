"""SEDD: score entropy, the continuous-time bound of a network that gives ratios q(y) / q(z), for any process.

The same bound as MDLM's and Duo's, in another parametrisation: any positive ratios are allowed, they need not belong
to a belief. Closed forms of its sum over the data's ratios are in ``fused.process_formulas``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality.denoisers.readouts import check_fits, check_states
from duality.diffusion import posterior
from duality.diffusion.processes import prior_on
from duality.fused.lazy import Ratios, ratios_of
from duality.fused.loss import fused_loss
from duality.fused.process_formulas import formulas_of
from duality.noise import Noise
from duality.objectives.base import dropout_of, end_terms, intersection
from duality.protocols import AnyDenoiser, Dropout, Ends, Kind, Loss, Process, Schedule, Valid


@dataclass(frozen=True)
class ScoreEntropy:
    """E_t of the score entropy of ``process``."""

    process: Process
    schedule: Schedule
    kind: Kind = "bound"

    def ratios(self, denoiser: AnyDenoiser, z: Tensor, alpha: Tensor, valid: Valid, dropout: Dropout = None) -> Ratios:
        """The ratios of a score model over the states of the process."""
        check_fits(denoiser, self.process)
        ratios = ratios_of(denoiser, z, alpha, valid, dropout)
        check_states(ratios.num_states, self.process)
        return ratios

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        alpha, alpha_prime = self.schedule.alpha(t), self.schedule.alpha_prime(t)
        z = self.process.corrupt(x, alpha, noise)
        ratios = self.ratios(denoiser, z, alpha, valid, dropout_of(noise, dropout))
        formulas = formulas_of(self.process)
        formula = formulas.score_entropy(x, z, alpha[:, None], alpha_prime[:, None])
        return fused_loss(ratios, formula, intersection(formulas.loss_positions(z), valid))

    def ends(self, denoiser: AnyDenoiser, x: Tensor, noise: Noise, valid: Valid = None) -> Ends:
        def reconstruct(z: Tensor, alpha: Tensor) -> Tensor:
            ratios = self.ratios(denoiser, z, alpha, valid).log_ratios()
            prior = prior_on(self.process, x.device)
            probs = posterior.analytic(ratios, z, alpha[:, None], alpha.new_ones(len(x), 1), prior)
            if self.process.mask_id is not None:
                probs[..., self.process.mask_id] = 0.0
            return probs.sum(-1).log() - probs.gather(-1, x[..., None])[..., 0].log()

        return end_terms(self.process, self.schedule, x, noise, reconstruct)
