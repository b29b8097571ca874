"""Shared by the tests of BERT-Mouth and DiffusionBERT: the toy's process, draws from it, small networks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from duality.diffusion import draws
from duality.diffusion.processes import Absorbing
from duality.diffusion.schedules import LogLinear
from duality.methods.bert_mouth import BertMouth
from duality.methods.diffusion_bert import DiffusionBERT
from duality.networks.dit import DiT
from duality.noise import Noise
from duality.protocols import Method, Vocabulary

MASK = 3
PROCESS = Absorbing(MASK + 1)
STRENGTH = 0.3
TIMES = LogLinear(eps=0.0)
SMALL = DiT(width=16, depth=1, heads=2, time_width=8, dropout=0.0)
METHODS: tuple[Method, ...] = (BertMouth(), DiffusionBERT())


def draw_data(law: Tensor, count: int, noise: Noise) -> Tensor:
    pair = draws.categorical(law.flatten().expand(count, -1), noise.uniform("data"))
    return torch.stack([pair // 3, pair % 3], 1)


def agrees(tokens: Tensor, law: Tensor) -> None:
    """Chi-square of pairs of tokens against their exact law (3, 3)."""
    count, expected = len(tokens), law.flatten() * len(tokens)
    assert int(tokens.max()) < MASK
    counts = torch.bincount(tokens[:, 0] * 3 + tokens[:, 1], minlength=9).double()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert abs(statistic - 8) < 4.5 * math.sqrt(2 * 8), (count, statistic)


def trained(method: Method, num_tokens: int = 7, num_labels: int = 0) -> Any:
    """A network of a method with random weights, whose belief is not uniform, in float64."""
    counts = torch.arange(num_tokens, dtype=torch.float64) ** 3
    network = method.network(SMALL, Vocabulary(num_tokens, num_labels, lambda: counts))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return network.double()


def batch(rows: int = 6, length: int = 5, num_tokens: int = 7) -> tuple[Tensor, Tensor, Noise]:
    noise = Noise.of(4, 0, torch.arange(rows))
    return noise.integers("x", num_tokens, length), noise.uniform("t"), noise


# --- the spindle schedule
