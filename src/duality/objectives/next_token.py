"""The autoregressive model: -log p(x_l | x_<l), exact, for every token of the sequence. No noise, no time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.fused.formulas import Surprisal
from duality.fused.lazy import belief_of
from duality.fused.loss import fused_loss
from duality.noise import Noise
from duality.objectives.base import dropout_of
from duality.protocols import Denoiser, Ends, Kind, Loss


@dataclass(frozen=True)
class NextToken:
    """Cross-entropy of each token given the ones before it."""

    kind: Kind = "exact"

    def __call__(
        self, denoiser: Denoiser, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss:
        belief = belief_of(denoiser, x, torch.ones_like(t), mask, dropout_of(noise, dropout))
        return fused_loss(belief, Surprisal(x, torch.ones_like(t)[:, None]), mask)

    def ends(self, denoiser: Denoiser, x: Tensor, noise: Noise, mask: Tensor | None = None) -> Ends:
        nothing = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        return Ends(nothing, nothing)
