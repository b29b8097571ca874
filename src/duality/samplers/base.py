"""One step of a sampler that is a mixture of three routes: keep the token, draw it from the belief, or from the prior.

Choosing the route needs the belief at one token only, and drawing from the belief its whole row. Positions that need
neither are not projected to the vocabulary at all; the others are projected some rows at a time. Samplers that differ
in the probabilities of the routes (``Ancestral``, ``Psi``) share this.

The last step draws, or takes a most likely token. A denoiser of uniform noise gives the cavity belief p: what all other
positions say. The greedy tail takes the argmax of p, and ignores what the token z itself says. The posterior tail
takes the argmax of p(x) q(z | x), which is log p with ``posterior.log_evidence`` added at z: z stays, unless another
token is that much more likely. With absorbing noise the two tails are the same: a mask token says nothing, and any
other token is clean and stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.readouts import check_fits, check_states
from duality.denoisers.wrapping import unwrap
from duality.devices import finite, positions
from duality.diffusion.draws import draw_states
from duality.diffusion.posterior import Routes, log_evidence
from duality.fused.lazy import belief_of
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Denoiser, LazyBelief, Process, Tail

DEFAULT_STEPS = 32


@dataclass(frozen=True)
class RouteSampler:
    """A sampler whose step is a mixture of the three routes; a subclass gives their probabilities."""

    process: Process

    def routes(self, p_z: Tensor, prior_z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Routes:
        """The probabilities of a step's three routes; all arguments broadcast to (B, L)."""
        raise NotImplementedError

    def corrupt(self, denoiser: AnyDenoiser, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor:
        """The noise that the steps reverse."""
        return self.process.corrupt(x, alpha, noise)

    def start(self, denoiser: AnyDenoiser, length: int, steps: int, noise: Noise) -> Tensor:
        if not isinstance(denoiser, Denoiser):
            raise ValueError(
                f"the {type(self).__name__.lower()} sampler needs probabilities, and a "
                f"{type(unwrap(denoiser)).__name__} gives none: sample a score model with the analytic sampler"
            )
        check_fits(denoiser, self.process)
        return self.process.sample_prior(length, noise)

    def step(self, denoiser: AnyDenoiser, state: Tensor, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Tensor:
        """z_s from z_t: one network call, then a route for each token."""
        length, z = state.shape[1], state.flatten()
        belief: LazyBelief = belief_of(denoiser, state, alpha_t)
        check_states(belief.num_states, self.process)
        now, later = (level.repeat_interleave(length) for level in (alpha_t, alpha_s))
        prior_z, believable = self.process.prior_of(z), z < belief.num_outputs
        route, draw = (noise.uniform(tag, length).flatten() for tag in ("route", "draw"))

        # Mask tokens and tokens outside the prior's support have known route probabilities: the belief at z is 0 or
        # does not matter. Of these, only positions that take the belief route are projected.
        known = self.routes(torch.zeros_like(prior_z), prior_z, now, later)
        from_prior = (route >= known.belief) & (route < known.belief + known.prior)
        needed, tokens = torch.where(believable, prior_z > 0, route < known.belief), z.clone()
        for rows, log_p in belief.each(positions(needed)):
            log_p_z = finite(log_p).gather(-1, z[rows, None].clamp_max(belief.num_outputs - 1))[:, 0]
            p_z = torch.where(believable[rows], log_p_z.double().exp(), 0.0)
            routes, u = self.routes(p_z, prior_z[rows], now[rows], later[rows]), route[rows]
            from_prior[rows] = (u >= routes.belief) & (u < routes.belief + routes.prior)
            takes = u < routes.belief
            chosen = positions(takes)
            places = rows[chosen]
            tokens[places] = torch.where(takes[chosen], draw_states(log_p, chosen, draw[places]), tokens[places])
        from_noise = self.process.sample_prior(length, noise.fold("fresh"))
        return torch.where(from_prior.view(state.shape), from_noise, tokens.view(state.shape))

    def last(self, denoiser: AnyDenoiser, state: Tensor, alpha_t: Tensor, tail: Tail, noise: Noise) -> Tensor:
        """The step to clean tokens: drawn, or the most likely ones of the belief or of the posterior."""
        if tail == "ancestral":
            return self.step(denoiser, state, alpha_t, torch.ones_like(alpha_t), noise)
        belief = belief_of(denoiser, state, alpha_t)
        if tail == "greedy":
            return belief.argmax_states()
        # argmax of p(x) q(z | x), some rows at a time; a token outside the prior's support is no noise and stays
        states, tokens = state.flatten(), state.flatten().clone()
        prior_z, believable = self.process.prior_of(states), states < belief.num_outputs
        evidence = log_evidence(prior_z, alpha_t.repeat_interleave(state.shape[1]))
        for rows, log_p in belief.each(positions(prior_z > 0)):
            most = finite(log_p).max(-1)
            at_z = log_p.gather(-1, states[rows, None].clamp_max(belief.num_outputs - 1))[:, 0].double()
            # a belief of 0 stays 0, whatever the evidence: at alpha = 1 the sum is no number, and nothing is above it
            stays = (prior_z[rows] == 0) | (believable[rows] & (at_z + evidence[rows] > most.values))
            tokens[rows] = torch.where(stays, states[rows], most.indices)
        return tokens.view(state.shape)

    def tokens(self, denoiser: AnyDenoiser, state: Tensor) -> Tensor:
        return state

    def steps(self, length: int, wanted: int | None = None) -> int:
        return DEFAULT_STEPS if wanted is None else wanted
