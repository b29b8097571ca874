"""Ancestral sampling of vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.diffusion import draws
from duality.diffusion.vectors import (
    nearest,
    posterior,
)
from duality.noise import Noise
from duality.protocols import VectorDenoiser


@dataclass(frozen=True)
class Cloud:
    """What the sampler carries: the noisy vectors ``z`` and the last prediction ``guess``, both (B, L, d)."""

    z: Tensor
    guess: Tensor


@dataclass(frozen=True)
class Posterior:
    """Ancestral sampling of vectors: z_s ~ q(z_s | z_t, e = x_hat), and at the last level a token from the logits.

    The signal levels of ``generate`` are read as times, t = 1 - alpha (``LogLinear(eps=0)``). With ``clamp``, x_hat is
    rounded to the nearest embedding first (Diffusion-LM's clamping trick).
    """

    clamp: bool = False

    def start(self, denoiser: VectorDenoiser, length: int, steps: int, noise: Noise) -> Cloud:
        if not isinstance(denoiser, VectorDenoiser):
            raise ValueError(
                f"the sampler of Gaussian models moves vectors, and a {type(denoiser).__name__} reads tokens: "
                "sample it with the sampler of its own method"
            )
        table = denoiser.embeddings()
        z = noise.normal("start", length, table.shape[-1]).to(table.dtype)
        return Cloud(z, torch.zeros_like(z))

    def step(self, denoiser: VectorDenoiser, state: Cloud, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Cloud:
        gamma_t, gamma_s = denoiser.gamma(1 - alpha_t)[0], denoiser.gamma(1 - alpha_s)[0]
        x_hat = draws.finite(denoiser.predict(state.z, gamma_t, guess=state.guess).x_hat)
        table = denoiser.embeddings()
        target = table[nearest(x_hat, table)] if self.clamp else x_hat
        mean, deviation = posterior(state.z, target, gamma_t, gamma_s)
        return Cloud(mean + deviation * noise.normal("posterior", *mean.shape[1:]).to(mean.dtype), x_hat)

    def last(self, denoiser: VectorDenoiser, state: Cloud, alpha_t: Tensor, greedy: bool, noise: Noise) -> Tensor:
        gamma = denoiser.gamma(1 - alpha_t)[0]
        logits = draws.finite(denoiser.predict(state.z, gamma, guess=state.guess).logits)
        if greedy:
            return logits.argmax(-1)
        return draws.categorical(torch.softmax(logits, -1), noise.uniform("draw", logits.shape[1]))

    def tokens(self, denoiser: VectorDenoiser, state: Cloud) -> Tensor:
        return nearest(state.guess, denoiser.embeddings())

    def default_steps(self, length: int) -> int:
        return 32
