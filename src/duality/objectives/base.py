"""Shared by the objectives: the sum over valid tokens, and the two terms that close a bound.

    -log p(x) <= mean over t of the objective + KL(q(z_1 | x) || prior) - log p(x | z_0)

A schedule that begins at alpha = 1 has z_0 = x, and nothing is left to reconstruct; one that ends at alpha = 0 has no
prior term. Absorbing noise must end there: an unmasked token is impossible under its prior.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from duality.denoisers.readouts import check_fits, check_states
from duality.diffusion import posterior
from duality.diffusion.processes import prior_on
from duality.fused.lazy import Belief, belief_of
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Dropout, Ends, Latent, Loss, Process, Schedule, Valid


def loss_of_nats(nats: Tensor, valid: Valid) -> Loss:
    """The loss of nats per token; padding has none."""
    if valid is not None:
        nats = torch.where(valid, nats, 0.0)
    return Loss(nats.sum(), nats.detach())


def intersection(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Positions in both sets; None is the set of all positions."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def dropout_of(noise: Noise, dropout: bool) -> Noise | None:
    """The noise of dropout, None without dropout."""
    return noise.fold("dropout") if dropout else None


class NoEnds:
    """A likelihood without end terms: both are 0."""

    def ends(self, denoiser: AnyDenoiser, x: Tensor, noise: Noise, valid: Valid = None) -> Ends:
        zeros = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        return Ends(zeros, zeros)


Reconstruction = Callable[[Tensor, Tensor], Tensor]


def end_terms(process: Process, schedule: Schedule, x: Tensor, noise: Noise, reconstruct: Reconstruction) -> Ends:
    """Prior and reconstruction term; ``reconstruct(z, alpha)`` is -log p(x | z), called only if z_0 is not x."""
    first, final = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    last = torch.full((), final, dtype=torch.float64, device=x.device)
    prior = posterior.prior_gap(last, prior_on(process, x.device), x)
    if first == 1.0:
        return Ends(prior, torch.zeros_like(prior))
    level = torch.full((len(x),), first, dtype=torch.float64, device=x.device)
    z = process.corrupt(x, level, noise.fold("reconstruction"))
    return Ends(prior, reconstruct(z, level))


def belief_in(
    process: Process, denoiser: AnyDenoiser, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None
) -> Belief:
    """The belief of a denoiser that fits the process: over its states, and never in its mask token."""
    check_fits(denoiser, process)
    belief = belief_of(denoiser, z, alpha, valid, dropout)
    check_states(belief.num_states, process)
    if process.mask_id is None or belief.num_outputs <= process.mask_id:
        return belief
    # a materialised belief may exclude the mask token at every position; a network's output never does
    if belief.head is not None or not bool((belief.vectors[..., process.mask_id] == -torch.inf).all()):
        raise ValueError(
            f"the denoiser gives the mask token of {process} a probability, so its loss would be no bound: use "
            "SubsDenoiser, which excludes it"
        )
    return belief
