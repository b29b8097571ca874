"""Ancestral sampling of vectors, for Gaussian models: z_s ~ q(z_s | z_t, e = x_hat), then tokens from the logits.

The logits are p(x | z), with the evidence of the vector itself: the greedy and the posterior tail are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.wrapping import vector_denoiser
from duality.devices import finite
from duality.diffusion.draws import categorical
from duality.diffusion.vectors import nearest, posterior
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Tail
from duality.samplers.base import DEFAULT_STEPS


@dataclass(frozen=True)
class _VectorState:
    """The sampler's state: the noisy vectors ``z`` and the last prediction ``guess``, both (B, L, d)."""

    z: Tensor
    guess: Tensor


@dataclass(frozen=True)
class GaussianAncestral:
    """Posterior steps of vectors, and at the last level a token from the logits.

    The signal levels of ``generate`` are read as times, t = 1 - alpha (``LogLinear(eps=0)``). With ``clamp``, x_hat is
    rounded to the nearest embedding first (Diffusion-LM's clamping trick).
    """

    clamp: bool = False

    def start(self, denoiser: AnyDenoiser, length: int, steps: int, noise: Noise) -> _VectorState:
        table = vector_denoiser(denoiser).embeddings()
        z = noise.normal("start", length, table.shape[-1]).to(table.dtype)
        return _VectorState(z, torch.zeros_like(z))

    def step(
        self, denoiser: AnyDenoiser, state: _VectorState, alpha_t: Tensor, alpha_s: Tensor, noise: Noise
    ) -> _VectorState:
        model = vector_denoiser(denoiser)
        gamma_t, gamma_s = model.gamma(1 - alpha_t)[0], model.gamma(1 - alpha_s)[0]
        x_hat = finite(model.predict(state.z, gamma_t, guess=state.guess).x_hat)
        table = model.embeddings()
        target = table[nearest(x_hat, table)] if self.clamp else x_hat
        mean, deviation = posterior(state.z, target, gamma_t, gamma_s)
        return _VectorState(mean + deviation * noise.normal("posterior", *mean.shape[1:]).to(mean.dtype), x_hat)

    def last(self, denoiser: AnyDenoiser, state: _VectorState, alpha_t: Tensor, tail: Tail, noise: Noise) -> Tensor:
        model = vector_denoiser(denoiser)
        logits = finite(model.predict(state.z, model.gamma(1 - alpha_t)[0], guess=state.guess).logits)
        if tail == "ancestral":
            return categorical(torch.softmax(logits, -1), noise.uniform("draw", logits.shape[1]))
        return logits.argmax(-1)

    def tokens(self, denoiser: AnyDenoiser, state: _VectorState) -> Tensor:
        return nearest(state.guess, vector_denoiser(denoiser).embeddings())

    def steps(self, length: int, wanted: int | None = None) -> int:
        return DEFAULT_STEPS if wanted is None else wanted
