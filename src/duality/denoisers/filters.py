"""Temperature and top-p: transforms of the belief about the clean token, never of the posterior of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from duality.denoisers.wrapping import needs_belief
from duality.fused.lazy import Belief, belief_of, materialised_log_probs
from duality.protocols import AnyDenoiser, Dropout, Labels, Latent, Valid


@dataclass(frozen=True)
class Temperature:
    """p^(1/T), normalised: T < 1 sharpens, T > 1 flattens."""

    denoiser: AnyDenoiser
    temperature: float
    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}: it must be positive; 1 changes nothing")
        needs_belief(self.denoiser, "temperature", "leave it at 1")

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        return belief_of(self.denoiser, z, alpha, valid, dropout, labels).with_transform(self)

    def __call__(self, log_p: Tensor, rows: Tensor) -> Tensor:
        """The transform of some rows of log-probabilities."""
        # from the largest down: a tiny temperature then leaves the largest instead of no number at all, and so does
        # one that float32 does not have
        temperature = max(self.temperature, torch.finfo(torch.float32).tiny)
        return torch.log_softmax((log_p - log_p.amax(-1, keepdim=True)) / temperature, -1)

    log_probs = materialised_log_probs


@dataclass(frozen=True)
class TopP:
    """The nucleus: the fewest tokens whose mass reaches ``mass``, the crossing token included, renormalised."""

    denoiser: AnyDenoiser
    mass: float
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top-p is {self.mass}: it must be in (0, 1]; 1 changes nothing")
        needs_belief(self.denoiser, "top-p", "leave it at 1")

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        belief = belief_of(self.denoiser, z, alpha, valid, dropout, labels)
        return belief if self.mass == 1 else belief.with_transform(self)

    def __call__(self, log_p: Tensor, rows: Tensor) -> Tensor:
        """The transform of some rows of log-probabilities."""
        ordered, ids = log_p.sort(-1, descending=True)
        probs = ordered.double().exp()
        # float32 probabilities sum to 1 only nearly: the mass is a share of their sum
        outside = probs.cumsum(-1) - probs >= self.mass * probs.sum(-1, keepdim=True)
        cut = torch.zeros_like(outside).scatter(-1, ids, outside)
        return torch.log_softmax(log_p.masked_fill(cut, -torch.inf), -1)

    log_probs = materialised_log_probs
