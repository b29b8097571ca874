"""Analytic (Tweedie) sampling of a score model: SEDD's sampler, with its final denoising.

The ratios at z_t, with the last stretch of noise taken back, give the ratios at the earlier level exactly
(``functional.analytic``); each token is drawn from them on its own. The last step goes to alpha = 1 and never writes
the mask. The greedy tail takes the largest instead of drawing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality import functional
from duality.noise import Noise
from duality.processes import Absorbing
from duality.protocols import Process, Score
from duality.wrappers import bare


@dataclass(frozen=True)
class Analytic:
    """One exact reverse step of the score after another."""

    process: Process

    def start(self, denoiser: Score, length: int, steps: int, noise: Noise) -> Tensor:
        if not isinstance(denoiser, Score):
            raise ValueError(
                f"the analytic sampler needs the ratios of a score model, and a {type(bare(denoiser)).__name__} gives "
                "none: sample it with its own sampler (ancestral)"
            )
        return self.process.sample_prior(length, noise)

    def probabilities(self, denoiser: Score, z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
        """Unnormalised law of each token of z_s, (B, L, K)."""
        ratios = functional.finite(denoiser.log_ratios(z, alpha_t), alpha_t)
        prior = self.process.prior().to(z.device)
        return functional.analytic(ratios, z, alpha_t[:, None], alpha_s[:, None], prior)

    def step(self, denoiser: Score, state: Tensor, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Tensor:
        probs = self.probabilities(denoiser, state, alpha_t, alpha_s)
        return functional.categorical(probs, noise.uniform("draw", state.shape[1]))

    def last(self, denoiser: Score, state: Tensor, alpha_t: Tensor, greedy: bool, noise: Noise) -> Tensor:
        probs = self.probabilities(denoiser, state, alpha_t, torch.ones_like(alpha_t))
        if isinstance(self.process, Absorbing):
            probs = probs[..., : self.process.mask_id]
        return probs.argmax(-1) if greedy else functional.categorical(probs, noise.uniform("draw", state.shape[1]))

    def tokens(self, denoiser: Score, state: Tensor) -> Tensor:
        return state

    def default_steps(self, length: int) -> int:
        return 32
