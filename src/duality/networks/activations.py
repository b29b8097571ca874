"""The activations of an MLP by name: GELU in its tanh form, as in the paper, and the square of ReLU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["gelu", "relu2"]


class _SquaredReLU(nn.Module):
    """max(x, 0)^2 (So et al., 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "gelu": partial(nn.GELU, approximate="tanh"),
    "relu2": _SquaredReLU,
}
