"""What every bound of a discrete process shares: the sum over real tokens, and the terms at its two ends.

    -log p(x) <= mean over t of the objective + KL(q(z_1 | x) || prior) - log p(x | z_0)

A schedule that begins at alpha = 1 has z_0 = x, and nothing is left to reconstruct; one that ends at alpha = 0 has no
prior term. Absorbing noise must end there: a token that is still shown is impossible under its prior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from duality.diffusion import posterior
from duality.fused.lazy import belief_of
from duality.fused.loss import Formula, fused_loss
from duality.noise import Noise
from duality.protocols import Denoiser, Ends, Kind, Loss, Process, Schedule


def summed(nats: Tensor, mask: Tensor | None) -> Loss:
    """The loss of nats per token, of which filling has none."""
    if mask is not None:
        nats = torch.where(mask, nats, 0.0)
    return Loss(nats.sum(), nats.detach())


def both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Where two conditions hold; None is no condition."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def dropout_of(noise: Noise, dropout: bool) -> Noise | None:
    """The noise of dropout, if there is to be any."""
    return noise.fold("dropout") if dropout else None


Reconstruction = Callable[[Tensor, Tensor], Tensor]


def end_terms(process: Process, schedule: Schedule, x: Tensor, noise: Noise, reconstruct: Reconstruction) -> Ends:
    """Prior and reconstruction term; ``reconstruct(z, alpha)`` is -log p(x | z), asked only where z_0 is not x."""
    first, final = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64, device=x.device))
    prior = posterior.prior_gap(final, process.prior().to(x.device), x)
    if float(first) == 1.0:
        return Ends(prior, torch.zeros_like(prior))
    level = first.expand(len(x))
    z = process.corrupt(x, level, noise.fold("reconstruction"))
    return Ends(prior, reconstruct(z, level))


@dataclass(frozen=True)
class BeliefBound:
    """E_t of a continuous-time bound for a model that answers with a belief: corrupt, ask, pay by a formula.

    A kind of noise changes the formula and who pays, which a subclass gives; ``alpha``, ``alpha_prime`` come as (B, 1).
    """

    process: Process
    schedule: Schedule
    kind: Kind = "bound"

    def formula(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Formula:
        raise NotImplementedError

    def pays(self, z: Tensor) -> Tensor | None:
        """The tokens (B, L) whose loss is not 0 from the start; None: all."""
        return None

    def __call__(
        self, denoiser: Denoiser, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss:
        alpha = self.schedule.alpha(t)
        z = self.process.corrupt(x, alpha, noise)
        belief = belief_of(denoiser, z, alpha, mask, dropout_of(noise, dropout))
        formula = self.formula(x, z, alpha[:, None], self.schedule.alpha_prime(t)[:, None])
        return fused_loss(belief, formula, both(self.pays(z), mask))

    def ends(self, denoiser: Denoiser, x: Tensor, noise: Noise, mask: Tensor | None = None) -> Ends:
        def reconstruct(z: Tensor, alpha: Tensor) -> Tensor:
            p = belief_of(denoiser, z, alpha, mask).log_probs().double().exp()
            return posterior.reconstruction(p, x, z, alpha[:, None], self.process.prior().to(x.device))

        return end_terms(self.process, self.schedule, x, noise, reconstruct)
