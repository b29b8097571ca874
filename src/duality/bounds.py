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

from duality import functional
from duality.noise import Noise
from duality.protocols import Denoiser, Ends, Loss, Process, Schedule


def summed(nats: Tensor, mask: Tensor | None) -> Loss:
    """The loss of nats per token, of which filling has none."""
    if mask is not None:
        nats = torch.where(mask, nats, 0.0)
    return Loss(nats.sum(), nats.detach())


def dropout_of(noise: Noise, dropout: bool) -> Noise | None:
    """The noise of dropout, if there is to be any."""
    return noise.fold("dropout") if dropout else None


Reconstruction = Callable[[Tensor, Tensor], Tensor]


def end_terms(process: Process, schedule: Schedule, x: Tensor, noise: Noise, reconstruct: Reconstruction) -> Ends:
    """Prior and reconstruction term; ``reconstruct(z, alpha)`` is -log p(x | z), asked only where z_0 is not x."""
    first, final = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64, device=x.device))
    prior = functional.prior_gap(final, process.prior().to(x.device), x)
    if float(first) == 1.0:
        return Ends(prior, torch.zeros_like(prior))
    level = first.expand(len(x))
    z = process.corrupt(x, level, noise.fold("reconstruction"))
    return Ends(prior, reconstruct(z, level))


@dataclass(frozen=True)
class Asked:
    """Noisy tokens, and what the denoiser believes of them; levels and slopes are (B, 1)."""

    z: Tensor
    log_p: Tensor
    alpha: Tensor
    alpha_prime: Tensor


def ask(
    denoiser: Denoiser,
    process: Process,
    schedule: Schedule,
    x: Tensor,
    t: Tensor,
    noise: Noise,
    mask: Tensor | None,
    dropout: bool,
) -> Asked:
    """Corrupt x to the level of time t and ask what it was."""
    alpha = schedule.alpha(t)
    z = process.corrupt(x, alpha, noise)
    log_p = denoiser.log_probs(z, alpha, mask, dropout_of(noise, dropout))
    return Asked(z, log_p, alpha[:, None], schedule.alpha_prime(t)[:, None])


def belief_ends(
    denoiser: Denoiser, process: Process, schedule: Schedule, x: Tensor, noise: Noise, mask: Tensor | None
) -> Ends:
    """The end terms of a model that answers with a belief."""

    def reconstruct(z: Tensor, alpha: Tensor) -> Tensor:
        p = denoiser.log_probs(z, alpha, mask).double().exp()
        return functional.reconstruction(p, x, z, alpha[:, None], process.prior().to(x.device))

    return end_terms(process, schedule, x, noise, reconstruct)
