"""Analytic (Tweedie) sampling of a score model: SEDD's sampler, with its final denoising.

The ratios at z_t give the ratios at the earlier level exactly (``posterior.analytic``); each token is drawn from them
independently. The last step goes to alpha = 1 and never draws the mask token. Its law is the posterior of the clean
token, as ratios include the evidence of the token itself: the greedy and the posterior tail both take its argmax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.readouts import check_fits
from duality.denoisers.wrapping import unwrap
from duality.devices import finite, positions
from duality.diffusion import draws, posterior
from duality.diffusion.processes import prior_on
from duality.fused.lazy import ratios_of
from duality.noise import Noise
from duality.protocols import AnyDenoiser, LazyRatios, Process, Score, Tail
from duality.samplers.base import DEFAULT_STEPS

Choice = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Analytic:
    """Exact reverse steps of a score model."""

    process: Process

    def start(self, denoiser: AnyDenoiser, length: int, steps: int, noise: Noise) -> Tensor:
        if not isinstance(denoiser, Score):
            raise ValueError(
                "the analytic sampler needs the ratios of a score model, and a "
                f"{type(unwrap(denoiser)).__name__} gives none: sample it with its own sampler (ancestral)"
            )
        check_fits(denoiser, self.process)
        return self.process.sample_prior(length, noise)

    def step(self, denoiser: AnyDenoiser, state: Tensor, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Tensor:
        u = noise.uniform("draw", state.shape[1]).flatten()
        return self.each(denoiser, state, alpha_t, alpha_s, lambda p, rows: draws.categorical(p, u[rows]))

    def last(self, denoiser: AnyDenoiser, state: Tensor, alpha_t: Tensor, tail: Tail, noise: Noise) -> Tensor:
        u = noise.uniform("draw", state.shape[1]).flatten()
        tokens = slice(self.process.mask_id)

        def choose(probs: Tensor, rows: Tensor) -> Tensor:
            law = probs[:, tokens]
            return draws.categorical(law, u[rows]) if tail == "ancestral" else law.argmax(-1)

        return self.each(denoiser, state, alpha_t, torch.ones_like(alpha_t), choose)

    def each(self, denoiser: AnyDenoiser, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, choose: Choice) -> Tensor:
        """A token for each position, taken by ``choose`` from its (unnormalised) law, a few rows of ratios at a time.

        A token that the prior excludes is not noise, and stays: with absorbing noise, an unmasked token.
        """
        ratios: LazyRatios = ratios_of(denoiser, z, alpha_t)
        prior = prior_on(self.process, z.device)
        states, length = z.flatten(), z.shape[1]
        levels = [level.repeat_interleave(length) for level in (alpha_t, alpha_s)]
        chosen, noisy = states.clone(), self.process.prior_of(states) > 0
        size = draws.block_rows(len(prior), z.device)
        for read, log_ratios in ratios.each(positions(noisy)):
            for rows, part in zip(torch.split(read, size), torch.split(log_ratios, size)):
                law = posterior.analytic(part, states[rows], levels[0][rows], levels[1][rows], prior)
                finite(torch.where(noisy[rows], law[:, 0], 0.0)[:, None])
                chosen[rows] = torch.where(noisy[rows], choose(law, rows), states[rows])
        return chosen.view(z.shape)

    def tokens(self, denoiser: AnyDenoiser, state: Tensor) -> Tensor:
        return state

    def steps(self, length: int, wanted: int | None = None) -> int:
        return DEFAULT_STEPS if wanted is None else wanted
