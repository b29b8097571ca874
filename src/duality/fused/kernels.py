"""The kernels of ``row_kernels`` as operators of torch, and where they run.

Kernels run on GPUs where triton is installed and compiles them. The environment variable DUALITY_KERNELS changes this:
``off`` forbids them, ``on`` asks for them on every device (for a CPU triton has an interpreter, TRITON_INTERPRET=1).

An operator knows the shape of its result without triton, so that fake tensors can be counted; triton is imported when
the first kernel runs. Logits are (n, K), of float32 or bfloat16, rows of contiguous states; numbers per row are (C, n).
"""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

VARIABLE = "DUALITY_KERNELS"
# Of a reduction: states at a time, and warps. More states need more registers, more rows at a time a larger cache.
_BLOCK, _WARPS = 2048, 16
_COLUMNS, _ROWS = 1024, 64  # of the logits that one program of a pull replaces


def kernels_run(device: torch.device) -> bool:
    """Whether kernels run on tensors of ``device``."""
    setting = os.environ.get(VARIABLE, "auto")
    if setting not in ("auto", "on", "off"):
        raise ValueError(f"{VARIABLE} is {setting!r}: choose from auto, on, off")
    return setting == "on" or (setting == "auto" and device.type == "cuda" and find_fault(device) is None)


@cache
def find_fault(device: torch.device) -> str | None:
    """Why kernels do not run on a GPU, None if they do; something that can be repaired is said once as a warning."""
    if find_spec("triton") is None:
        return "triton is not installed"
    try:
        reduce_exponentials(*(torch.zeros(1, *shape, dtype=kind, device=device) for shape, kind in _PROBE), total=False)
    except Exception as error:  # whatever stops the compiler: no C compiler, a GPU that is too old, another driver
        fault = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        warnings.warn(f"triton compiles no kernel here, PyTorch computes the losses instead ({fault})", stacklevel=2)
        return fault
    return None


_PROBE = (((4,), torch.float32), ((), torch.int64), ((), torch.int64))


def _kernels() -> ModuleType:
    from duality.fused import row_kernels

    return row_kernels


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Kernels start on the current device of their process, which need not be that of their tensors."""
    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else nullcontext()


def _sizes(num_states: int) -> dict[str, int]:
    return {"BLOCK": min(_BLOCK, 1 << (num_states - 1).bit_length()), "num_warps": _WARPS}


def _tiles(logits: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid of a pull, and its sizes."""
    n, num_states = logits.shape
    columns = min(_COLUMNS, 1 << (num_states - 1).bit_length())
    return (-(-n // _ROWS), -(-num_states // columns)), {"ROWS": _ROWS, "BLOCK": columns, "num_warps": 4}


def _empty_numbers(logits: Tensor, count: int) -> Tensor:
    return torch.empty(count, len(logits), dtype=torch.float64, device=logits.device)


def _empty_sums(logits: Tensor, wanted: bool) -> Tensor:
    """Sums of the gradient over the rows of each program."""
    (programs, _), _ = _tiles(logits)
    return torch.empty(programs if wanted else 0, logits.shape[1], device=logits.device)


@torch.library.custom_op("duality::reduce_exponentials", mutates_args=())
def reduce_exponentials(logits: Tensor, skip: Tensor, state: Tensor, total: bool) -> Tensor:
    out, (n, num_states) = _empty_numbers(logits, 4 if total else 3), logits.shape
    with on_device_of(logits):
        _kernels().reduce_exponentials[(n,)](
            logits, logits.stride(0), skip, state, out, n, K=num_states, TOTAL=total, **_sizes(num_states)
        )
    return out


reduce_exponentials.register_fake(lambda logits, skip, state, total: _empty_numbers(logits, 4 if total else 3))


@torch.library.custom_op("duality::reduce_log_count", mutates_args=())
def reduce_log_count(logits: Tensor, kappa: Tensor, z: Tensor, x: Tensor) -> Tensor:
    out, (n, num_states) = _empty_numbers(logits, 7), logits.shape
    with on_device_of(logits):
        _kernels().reduce_log_count[(n,)](
            logits, logits.stride(0), kappa, z, x, out, n, K=num_states, **_sizes(num_states)
        )
    return out


reduce_log_count.register_fake(lambda logits, kappa, z, x: _empty_numbers(logits, 7))


@torch.library.custom_op("duality::pull_exponentials", mutates_args=("logits",))
def pull_exponentials(logits: Tensor, z: Tensor, x: Tensor, factors: Tensor, shares: bool, sums: bool) -> Tensor:
    out, (n, num_states), (grid, sizes) = _empty_sums(logits, sums), logits.shape, _tiles(logits)
    with on_device_of(logits):
        _kernels().pull_exponentials[grid](
            logits, logits.stride(0), z, x, factors, out, n, K=num_states, SHARES=shares, SUMS=sums, **sizes
        )
    return out


pull_exponentials.register_fake(lambda logits, z, x, factors, shares, sums: _empty_sums(logits, sums))


@torch.library.custom_op("duality::reduce_divergence", mutates_args=())
def reduce_divergence(logits: Tensor, target: Tensor, states: Tensor, evidence: Tensor, kind: str) -> Tensor:
    out, (n, num_states) = _empty_numbers(logits, 8), logits.shape
    strides = logits, logits.stride(0), target, target.stride(0)
    with on_device_of(logits):
        _kernels().reduce_divergence[(n,)](
            *strides, *states, evidence, out, n, KIND=kind, K=num_states, **_sizes(num_states)
        )
    return out


reduce_divergence.register_fake(lambda logits, target, states, evidence, kind: _empty_numbers(logits, 8))


@torch.library.custom_op("duality::pull_divergence", mutates_args=("logits",))
def pull_divergence(
    logits: Tensor, target: Tensor, states: Tensor, evidence: Tensor, factors: Tensor, kind: str, sums: bool
) -> Tensor:
    out, (n, num_states), (grid, sizes) = _empty_sums(logits, sums), logits.shape, _tiles(logits)
    strides = logits, logits.stride(0), target, target.stride(0)
    with on_device_of(logits):
        _kernels().pull_divergence[grid](
            *strides, *states, evidence, factors, out, n, KIND=kind, K=num_states, SUMS=sums, **sizes
        )
    return out


pull_divergence.register_fake(lambda logits, target, states, evidence, factors, kind, sums: _empty_sums(logits, sums))
