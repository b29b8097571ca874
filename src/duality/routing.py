"""One step of a sampler that is a mixture of three routes: keep the token, draw it from the belief, or from the prior.

Choosing the route needs the belief at one token only; the vocabulary is touched just for the tokens that draw from it,
some rows at a time. Samplers that differ in the probabilities of the routes (``Ancestral``, ``Psi``) share this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality import functional
from duality.functional import Routes
from duality.noise import Noise
from duality.protocols import Denoiser, Process
from duality.wrappers import bare


@dataclass(frozen=True)
class Routed:
    """A sampler whose step is a mixture of the three routes; what a kind of it gives is their chances."""

    process: Process

    def routes(self, p_z: Tensor, prior_z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Routes:
        """The chances of a step's three routes; all broadcast to (B, L)."""
        raise NotImplementedError

    def start(self, denoiser: Denoiser, length: int, steps: int, noise: Noise) -> Tensor:
        if not isinstance(denoiser, Denoiser):
            raise ValueError(
                f"the {type(self).__name__.lower()} sampler needs probabilities, and a {type(bare(denoiser)).__name__} "
                "gives none: sample a score model with the analytic sampler"
            )
        return self.process.sample_prior(length, noise)

    def step(self, denoiser: Denoiser, state: Tensor, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Tensor:
        """z_s from z_t: one network call, then a route for each token."""
        z = state
        log_p = functional.finite(denoiser.log_probs(z, alpha_t), alpha_t)
        p_z = log_p.gather(-1, z[..., None])[..., 0].double().exp()
        ways = self.routes(p_z, self.process.prior_of(z), alpha_t[:, None], alpha_s[:, None])
        u = noise.uniform("route", z.shape[1])
        from_belief = u < ways.belief
        from_prior = ~from_belief & (u < ways.belief + ways.prior)
        z = torch.where(from_prior, self.process.sample_prior(z.shape[1], noise.fold("fresh")), z)
        drawn = functional.drawn_where(from_belief, log_p, noise.uniform("draw", z.shape[1]))
        return z.masked_scatter(from_belief, drawn)

    def last(self, denoiser: Denoiser, state: Tensor, alpha_t: Tensor, greedy: bool, noise: Noise) -> Tensor:
        """The step to clean tokens; ``greedy`` takes the most likely ones instead of drawing (Greedy-Tail)."""
        if greedy:
            return functional.finite(denoiser.log_probs(state, alpha_t), alpha_t).argmax(-1)
        return self.step(denoiser, state, alpha_t, torch.ones_like(alpha_t), noise)

    def tokens(self, denoiser: Denoiser, state: Tensor) -> Tensor:
        return state

    def default_steps(self, length: int) -> int:
        return 32
