"""The output head prepared for many products: cast once, and padded to what tensor cores need."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class HeadProduct:
    """A head in the precision of its products, and memory for the logits of a chunk: (rows, P).

    P is a multiple of 64 that is at least K: tensor cores need aligned rows. The columns from ``num_outputs`` on are 0.
    With ``lower``, logits are read in that precision; without it, in float32 at least.
    """

    weight: Tensor
    bias: Tensor
    logits: Tensor
    num_outputs: int
    lower: bool

    @staticmethod
    def of(head: nn.Linear, num_outputs: int, dtype: torch.dtype, rows: int, lower: bool) -> HeadProduct:
        padded = -(-len(head.weight) // 64) * 64
        like = head.weight.detach()
        weight, bias = (like.new_zeros(shape, dtype=dtype) for shape in ((padded, like.shape[1]), (padded,)))
        weight[:num_outputs] = head.weight.detach()[:num_outputs]
        bias[:num_outputs] = head.bias.detach()[:num_outputs]
        return HeadProduct(weight, bias, like.new_empty(rows, padded, dtype=dtype), num_outputs, lower)

    def project(self, vectors: Tensor) -> Tensor:
        """Logits (n, num_outputs), which the next ones overwrite."""
        logits = self.logits[: len(vectors)]
        torch.addmm(self.bias, vectors.to(self.weight.dtype), self.weight.T, out=logits)
        return logits[:, : self.num_outputs]
