"""Layers that networks are made of: a norm in the type of its input, and an embedding of the noise level."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """In the type of what it is given, also where its weight was sent in a lower one (FSDP)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), None, self.eps)


class TimeEmbedding(nn.Module):
    """Cosines and sines of the noise level at 128 frequencies, then a small MLP."""

    def __init__(self, width: int, num_features: int = 256):
        super().__init__()
        self.num_frequencies = num_features // 2
        self.mlp = nn.Sequential(nn.Linear(num_features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())

    def forward(self, condition: Tensor) -> Tensor:
        # made on the device: nothing is copied from the host
        places = torch.arange(self.num_frequencies, dtype=torch.float64, device=condition.device)
        frequencies = torch.exp(-math.log(1e4) * places / self.num_frequencies)
        angles = condition[:, None] * frequencies.to(condition.dtype)
        embedded: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], -1))
        return embedded
