"""Temperature and top-p."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.wrapping import bent, needs_belief
from duality.fused.lazy import Belief, belief_of, written_out
from duality.noise import Noise
from duality.protocols import Denoiser, Latent


@dataclass(frozen=True)
class Temperature:
    """p^(1/T), normalised: T < 1 sharpens, T > 1 flattens."""

    denoiser: Denoiser
    temperature: float

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}: it must be positive; 1 changes nothing")
        needs_belief(self.denoiser, "temperature", "leave it at 1")

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        return bent(belief_of(self.denoiser, z, alpha, mask, dropout), self.bend)

    def bend(self, log_p: Tensor, rows: Tensor) -> Tensor:
        # from the largest down, so that a tiny temperature leaves that one instead of no number at all
        return torch.log_softmax((log_p - log_p.amax(-1, keepdim=True)) / self.temperature, -1)

    log_probs = written_out


@dataclass(frozen=True)
class TopP:
    """The nucleus: the fewest tokens whose mass reaches ``mass``, the crossing token included, renormalised."""

    denoiser: Denoiser
    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top-p is {self.mass}: it must be in (0, 1]; 1 changes nothing")
        needs_belief(self.denoiser, "top-p", "leave it at 1")

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        belief = belief_of(self.denoiser, z, alpha, mask, dropout)
        return belief if self.mass == 1 else bent(belief, self.bend)

    def bend(self, log_p: Tensor, rows: Tensor) -> Tensor:
        ordered, ids = log_p.sort(-1, descending=True)
        probs = ordered.double().exp()
        # float32 probabilities sum to 1 only nearly: the mass is a share of what they sum to
        outside = probs.cumsum(-1) - probs >= self.mass * probs.sum(-1, keepdim=True)
        cut = torch.zeros_like(outside).scatter(-1, ids, outside)
        return torch.log_softmax(log_p.masked_fill(cut, -torch.inf), -1)

    log_probs = written_out
