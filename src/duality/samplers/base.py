"""One step of a sampler that is a mixture of three routes: keep the token, draw it from the belief, or from the prior.

Choosing the route needs the belief at one token only, and drawing from the belief its whole row: positions that need
neither are not projected to the vocabulary at all, and the others some rows at a time. Samplers that differ in the
probabilities of the routes (``Ancestral``, ``Psi``) share this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.wrapping import bare
from duality.diffusion import draws
from duality.diffusion.posterior import Routes
from duality.fused.lazy import belief_of
from duality.noise import Noise
from duality.protocols import Denoiser, Process


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
        length, z = state.shape[1], state.flatten()
        belief = belief_of(denoiser, state, alpha_t)
        now, later = (level.repeat_interleave(length) for level in (alpha_t, alpha_s))
        prior_z, named = self.process.prior_of(z), z < belief.num_named
        route, draw = (noise.uniform(tag, length).flatten() for tag in ("route", "draw"))

        # There is no belief in a state without a name (the mask), and to one that is not noise it does not matter:
        # the ways from these are known, and only who goes the way of the belief has it read.
        ways = self.routes(torch.zeros_like(prior_z), prior_z, now, later)
        from_prior = (route >= ways.belief) & (route < ways.belief + ways.prior)
        read, drawn = torch.where(named, prior_z > 0, route < ways.belief), z.clone()
        for rows, log_p in belief.each(read.nonzero()[:, 0]):
            log_p_z = draws.finite(log_p).gather(-1, z[rows, None].clamp_max(belief.num_named - 1))[:, 0]
            p_z = torch.where(named[rows], log_p_z.double().exp(), 0.0)
            ways = self.routes(p_z, prior_z[rows], now[rows], later[rows])
            chosen, u = (route[rows] < ways.belief).nonzero()[:, 0], route[rows]
            from_prior[rows] = (u >= ways.belief) & (u < ways.belief + ways.prior)
            drawn[rows[chosen]] = draws.drawn(log_p, chosen, draw[rows[chosen]])
        fresh = self.process.sample_prior(length, noise.fold("fresh"))
        return torch.where(from_prior.view(state.shape), fresh, drawn.view(state.shape))

    def last(self, denoiser: Denoiser, state: Tensor, alpha_t: Tensor, greedy: bool, noise: Noise) -> Tensor:
        """The step to clean tokens; ``greedy`` takes the most likely ones instead of drawing (Greedy-Tail)."""
        if greedy:
            return belief_of(denoiser, state, alpha_t).likeliest()
        return self.step(denoiser, state, alpha_t, torch.ones_like(alpha_t), noise)

    def tokens(self, denoiser: Denoiser, state: Tensor) -> Tensor:
        return state

    def default_steps(self, length: int) -> int:
        return 32
