"""Denoiser in, denoiser out: ways to bend a belief, which every sampler then has for free.

``Temperature`` and ``TopP`` act on the belief p about the clean token, never on the posterior of a step. ``Clamped``
fixes known tokens: the network reads them clean, and the belief about them is certain, so every sampler ends with them
in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.noise import Noise
from duality.protocols import Denoiser, Latent, TopK


@dataclass(frozen=True)
class Temperature:
    """p^(1/T), normalised: T < 1 sharpens, T > 1 flattens."""

    denoiser: Denoiser
    temperature: float

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}: it must be positive; 1 changes nothing")

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        return torch.log_softmax(self.denoiser.log_probs(z, alpha, mask, dropout) / self.temperature, -1)


@dataclass(frozen=True)
class TopP:
    """The nucleus: the fewest tokens whose mass reaches ``mass``, the crossing token included, renormalised."""

    denoiser: Denoiser
    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top-p is {self.mass}: it must be in (0, 1]; 1 changes nothing")

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        log_p = self.denoiser.log_probs(z, alpha, mask, dropout)
        if self.mass == 1:
            return log_p
        ordered, ids = log_p.sort(-1, descending=True)
        probs = ordered.double().exp()
        # float32 probabilities sum to 1 only nearly: the mass is a share of what they sum to
        outside = probs.cumsum(-1) - probs >= self.mass * probs.sum(-1, keepdim=True)
        cut = torch.zeros_like(outside).scatter(-1, ids, outside)
        return torch.log_softmax(log_p.masked_fill(cut, -torch.inf), -1)


@dataclass(frozen=True)
class Clamped:
    """Known tokens stay: ``tokens`` (L,) where ``known`` (L,) is True. For prompts and infilling."""

    denoiser: Denoiser
    tokens: Tensor
    known: Tensor

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        if isinstance(z, TopK):
            raise TypeError("Clamped takes token ids, not a mixture: known tokens are certain")
        log_p = self.denoiser.log_probs(torch.where(self.known, self.tokens, z), alpha, mask, dropout)
        certain = torch.full_like(log_p, -torch.inf)
        certain = certain.scatter(-1, self.tokens.expand(z.shape)[..., None], 0.0)
        return torch.where(self.known[:, None], certain, log_p)
