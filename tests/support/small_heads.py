"""Small vectors, heads and networks with random weights, for the tests of lazy logits and of fused losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from duality.networks import SIZES
from duality.protocols import Vocabulary

BATCH, LENGTH, WIDTH = 3, 7, 5


def inputs(num_states: int, dtype: torch.dtype) -> tuple[Tensor, nn.Linear]:
    """Vectors and a head whose beliefs differ by some nats."""
    torch.manual_seed(num_states)
    head = nn.Linear(WIDTH, num_states).to(torch.float64)
    nn.init.normal_(head.weight, std=0.8)
    nn.init.normal_(head.bias, std=0.5)
    vectors = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    # the same numbers in both precisions
    vectors, weight, bias = (each.float().to(dtype) for each in (vectors, head.weight.data, head.bias.data))
    head = head.to(dtype)
    head.weight.data, head.bias.data = weight, bias
    return vectors.requires_grad_(), head


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm().clamp_min(1e-300))


def network(method: Any, num_tokens: int = 13, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    model = method.network(replace(SIZES["nano"](), dropout=0.2), Vocabulary(num_tokens)).to(dtype)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.2)
    return model
