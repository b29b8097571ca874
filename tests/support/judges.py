"""A judge that needs no library, and the Gen PPL of texts in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from duality.evaluation.judge import Judge
from duality.evaluation.metrics import Estimate, perplexity

BOS = 256


def table_judge(context: int = 64, bos: int | None = BOS) -> Judge:
    """Bytes; the logits depend on the last byte only, and are nan on padding."""
    table = torch.randn(257, 257, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2

    def logits(ids: Tensor, valid: Tensor) -> Tensor:
        assert ids.shape == valid.shape
        assert ids.shape[1] <= context
        return torch.where(valid[..., None] == 1, table[ids], torch.nan)

    return Judge("table", lambda text: list(text.encode()), logits, context, bos)


def generative_perplexity(judge: Judge, texts: Sequence[str], seed: int = 0) -> Estimate:
    """Gen PPL of texts under a judge."""
    return perplexity(judge.nats(texts), seed)
