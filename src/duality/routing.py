"""One step of a sampler that is a mixture of three routes: keep the token, draw it from the belief, or from the prior.

Choosing the route needs the belief at one token only; the vocabulary is touched just for the tokens that draw from it,
some rows at a time. Samplers that differ in the probabilities of the routes (``Ancestral``, ``Psi``) share this.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from duality import functional
from duality.functional import Routes
from duality.noise import Noise
from duality.protocols import Denoiser, Process
from duality.wrappers import bare

# (p_z, prior_z, alpha_t, alpha_s), broadcasting to (B, L)
Chances = Callable[[Tensor, Tensor, Tensor, Tensor], Routes]


def begin(process: Process, denoiser: object, length: int, noise: Noise, who: str) -> Tensor:
    """Pure noise, after a model that answers with ratios or vectors has been refused."""
    if not isinstance(denoiser, Denoiser):
        raise ValueError(
            f"the {who} sampler needs probabilities, and a {type(bare(denoiser)).__name__} gives none: "
            "sample a score model with the analytic sampler"
        )
    return process.sample_prior(length, noise)


def advance(
    process: Process,
    chances: Chances,
    denoiser: Denoiser,
    z: Tensor,
    alpha_t: Tensor,
    alpha_s: Tensor,
    noise: Noise,
) -> Tensor:
    """z_s from z_t: one network call, then a route for each token."""
    log_p = functional.finite(denoiser.log_probs(z, alpha_t), alpha_t)
    p_z = log_p.gather(-1, z[..., None])[..., 0].double().exp()
    ways = chances(p_z, process.prior_of(z), alpha_t[:, None], alpha_s[:, None])
    u = noise.uniform("route", z.shape[1])
    from_belief = u < ways.belief
    from_prior = ~from_belief & (u < ways.belief + ways.prior)
    z = torch.where(from_prior, process.sample_prior(z.shape[1], noise.fold("fresh")), z)
    drawn = functional.drawn_where(from_belief, log_p, noise.uniform("draw", z.shape[1]))
    return z.masked_scatter(from_belief, drawn)


def finish(
    process: Process, chances: Chances, denoiser: Denoiser, z: Tensor, alpha_t: Tensor, greedy: bool, noise: Noise
) -> Tensor:
    """The step to clean tokens; ``greedy`` takes the most likely ones instead of drawing (Greedy-Tail)."""
    if greedy:
        return functional.finite(denoiser.log_probs(z, alpha_t), alpha_t).argmax(-1)
    return advance(process, chances, denoiser, z, alpha_t, torch.ones_like(alpha_t), noise)
