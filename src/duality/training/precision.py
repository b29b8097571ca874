"""In which numbers a network computes: one choice, for training and for whatever uses a model.

    float32     products of float32 numbers, added up in float32
    tf32        float32, but a GPU rounds the factors of a product to 10 bits (TensorFloat-32); elsewhere it is float32
    bfloat16    the factors of a product have 8 bits (autocast), everything else is float32
    auto        bfloat16 on a GPU that has units for it, float32 elsewhere

Weights, their average and the optimizer's state are float32 in all of them. So is whatever the law needs: logits are
float32 before the softmax, bounds and draws are in float64. bfloat16 keeps the keys and values of an autoregressive
model in bfloat16.

Why "auto" is float32 on a CPU that has units for bfloat16: what is gained depends on the network. Its larger products
take 0.6 of their time, its small ones more than before (docs/performance.md); and a recipe has the same digits on every
CPU. On a CPU without such units bfloat16 takes up to 20 times as long.

What must hold: ``computing`` with float32 on a CPU changes nothing, to the bit; outside of it all settings of torch are
what they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import get_args

import torch

from duality.training import Precision


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has units for products in bfloat16; elsewhere these are emulated, and slow."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu" and torch._C._has_mkldnn:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return False


def precision_on(precision: Precision, device: torch.device) -> Precision:
    """What ``precision`` means on a device: itself, or what "auto" stands for."""
    if precision not in get_args(Precision):
        raise ValueError(
            f"precision is {precision!r:.80}: it must be one of {', '.join(map(repr, get_args(Precision)))}"
        )
    if precision == "auto":
        return "bfloat16" if device.type == "cuda" and has_bfloat16(device) else "float32"
    return precision


def dtype_on(precision: Precision, device: torch.device) -> torch.dtype:
    """The type of the factors of a product."""
    return torch.bfloat16 if precision_on(precision, device) == "bfloat16" else torch.float32


def slowness(precision: Precision, device: torch.device) -> str | None:
    """What to say of a precision that the device has no units for."""
    if precision_on(precision, device) != "bfloat16" or has_bfloat16(device):
        return None
    return f"this {device.type} has no units for bfloat16, so that it is many times slower than float32 here"


@contextmanager
def float32_products(precision: Precision, device: torch.device) -> Iterator[None]:
    """Products of float32 numbers on a GPU are in TensorFloat-32 if ``precision`` says so, and in float32 if not.

    The setting is torch's, for all threads: only who changes it changes it back.
    """
    wanted = "high" if precision == "tf32" else "highest"
    before = torch.get_float32_matmul_precision() if device.type == "cuda" else wanted
    if before == wanted:
        yield
        return
    torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def computing(precision: Precision, device: torch.device) -> Iterator[None]:
    """Inside, networks compute in this precision."""
    lower = dtype_on(precision, device)
    autocast = nullcontext() if lower == torch.float32 else torch.autocast(device.type, lower)
    with float32_products(precision, device), autocast:
        yield
