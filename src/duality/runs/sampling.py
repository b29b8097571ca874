"""Samples of a case."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from duality.evaluation.cases import Case
from duality.evaluation.sweep import (
    Advance,
    Samples,
)
from duality.protocols import Sampler
from duality.runs.model import Model
from duality.samplers.grids import Grid


@dataclass
class Calls:
    """How many sequences reached a network."""

    rows: int = 0


@contextmanager
def count_calls(module: nn.Module) -> Iterator[Calls]:
    """Count the sequences that go through ``module`` in this context."""
    calls = Calls()

    def count(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        calls.rows += len(output)

    hook = module.register_forward_hook(count)
    try:
        yield calls
    finally:
        hook.remove()


def weights_id(model: Model) -> str:
    """The step of a model's checkpoint and a fingerprint of its weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.denoiser.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return f"step {model.step}, {digest.hexdigest()[:16]}"


def sample_case(
    model: Model,
    case: Case,
    wrap: Callable[[Any], Any],
    sampler: Sampler,
    grid: Grid | None,
    device: torch.device | str,
    batch_size: int,
    advance: Advance,
) -> Samples:
    """The samples of a case. ``wrap`` bends the belief as the case says (top-p, temperature); ``advance`` hears steps.

    It is told 1 for every step of every batch: ``steps`` times ``num`` / ``batch_size``, rounded up, in all.
    """
    network: Any = model.denoiser
    chosen = {} if grid is None else {"grid": grid}
    # the final norm: every call goes through it, and not every one on to the head
    with count_calls(network.backbone.norm) as calls:
        start = time.perf_counter()
        tokens = model.generate(
            wrap,
            sampler,
            case.steps,
            num=case.num,
            length=case.length,
            seed=case.seed,
            tail=case.tail,
            batch_size=batch_size,
            device=device,
            watch=lambda frame: advance(1) if frame.step else None,
            **chosen,
        ).cpu()
        seconds = time.perf_counter() - start
    texts = [model.tokenizer.decode(row) for row in tokens.tolist()]
    return Samples(tokens, texts, seconds / case.num, calls.rows / case.num, weights_id(model))
