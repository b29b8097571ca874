"""Ancestral sampling: draw z_s from the posterior evaluated at the belief p (the paper's Eq. 5).

The posterior is a mixture of three routes (``functional.routes``): keep z, draw from p, draw from the prior. Choosing
the route needs p at one token only; the vocabulary is touched just for the tokens that draw from p. Works unchanged for
uniform and absorbing noise, and for any process of the family.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality import functional
from duality.noise import Noise
from duality.protocols import Denoiser, Process
from duality.wrappers import bare


@dataclass(frozen=True)
class Ancestral:
    """One plug-in posterior step after another."""

    process: Process

    def start(self, denoiser: Denoiser, length: int, steps: int, noise: Noise) -> Tensor:
        if not isinstance(denoiser, Denoiser):
            raise ValueError(
                f"the ancestral sampler needs probabilities, and a {type(bare(denoiser)).__name__} gives none: "
                "sample a score model with the analytic sampler"
            )
        return self.process.sample_prior(length, noise)

    def step(self, denoiser: Denoiser, state: Tensor, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Tensor:
        z = state
        log_p = functional.finite(denoiser.log_probs(z, alpha_t), alpha_t)
        p_z = log_p.gather(-1, z[..., None])[..., 0].double().exp()
        ways = functional.routes(p_z, self.process.prior_of(z), alpha_t[:, None], alpha_s[:, None])
        u = noise.uniform("route", z.shape[1])
        from_belief = u < ways.belief
        from_prior = ~from_belief & (u < ways.belief + ways.prior)
        z = torch.where(from_prior, self.process.sample_prior(z.shape[1], noise.fold("fresh")), z)
        drawn = functional.categorical(log_p[from_belief].exp(), noise.uniform("draw", z.shape[1])[from_belief])
        return z.masked_scatter(from_belief, drawn)

    def last(self, denoiser: Denoiser, state: Tensor, alpha_t: Tensor, greedy: bool, noise: Noise) -> Tensor:
        if greedy:
            return functional.finite(denoiser.log_probs(state, alpha_t), alpha_t).argmax(-1)
        return self.step(denoiser, state, alpha_t, torch.ones_like(alpha_t), noise)

    def tokens(self, denoiser: Denoiser, state: Tensor) -> Tensor:
        return state

    def default_steps(self, length: int) -> int:
        return 32
