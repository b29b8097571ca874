"""x + gate * dropout(update), the end of both halves of a block.

On a GPU with triton this is one kernel, and one for its gradient (``residual_kernels``). Both draw the factors of
dropout again from the keys of the noise, so that none are kept between them: that would be a tensor of the size of the
activations twice in every block. Elsewhere the factors are drawn by ``Noise.keep`` and PyTorch does the rest. The two
have the same factors; a kernel rounds once at its end, PyTorch in the type of the update after every operation.

    draw_dropout     what to drop: keys for a kernel, or factors
    add_update       the sum

What must hold: both ways agree, and nothing else is saved than update, gate and keys (tests/gpu/test_residual.py).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from duality.fused import kernels
from duality.noise import Noise

_ROWS, _WORDS = 32, 64  # positions, and words of four columns, of one program


class DropoutKeys(NamedTuple):
    """The keys (B,) that a kernel draws from, and the probability of what is kept."""

    keys: Tensor
    share: float


Dropped = Tensor | DropoutKeys
_Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor, float]
_Context = Any  # what torch keeps between forward and backward pass


def draw_dropout(noise: Noise, tag: str, share: float, like: Tensor) -> Dropped:
    """What to drop of a tensor of this shape."""
    if like.shape[-1] % 4 == 0 and like.dtype != torch.float64 and kernels.kernels_run(like.device):
        return DropoutKeys(noise.fold(tag).keys, share)
    return noise.keep(tag, share, *like.shape[1:])


def add_update(x: Tensor, update: Tensor, gate: Tensor | None, dropped: Dropped | None) -> Tensor:
    """x + gate * dropout(update); ``gate`` is (B, 1, D), and None is 1; None drops nothing."""
    if isinstance(dropped, DropoutKeys):
        summed: Tensor = _add_dropped(x, update, gate, dropped.keys, dropped.share)
        return summed
    if dropped is not None:
        update = update * dropped.to(update.dtype)
    return x + update if gate is None else x + gate * update


def _kernels() -> ModuleType:
    from duality.networks import residual_kernels

    return residual_kernels


def _sizes(update: Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """The grid of a kernel, and its sizes."""
    batch, length, width = update.shape
    grid = (batch, -(-length // _ROWS), -(-width // (4 * _WORDS)))
    return grid, {"D": width, "ROWS": _ROWS, "WORDS": _WORDS, "num_warps": 2}


def _level(share: float) -> tuple[int, float]:
    """The bound and the factor of ``Noise.keep``."""
    level = min(max(round(share * 65536), 1), 65535)
    return level - 32768, 65536.0 / level


@torch.library.custom_op("duality::add_dropped", mutates_args=())
def _add_dropped(x: Tensor, update: Tensor, gate: Tensor | None, keys: Tensor, share: float) -> Tensor:
    """``add_update`` by a kernel."""
    x, update = x.contiguous(), update.contiguous()
    out, (grid, sizes) = _empty_sum(x, update), _sizes(update)
    gate = None if gate is None else gate.contiguous()
    with kernels.on_device_of(out):
        _kernels().add_dropped[grid](
            x, update, gate, keys, out, update.shape[1], *_level(share), GATE=gate is not None, **sizes
        )
    return out


def _empty_sum(x: Tensor, update: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=torch.promote_types(x.dtype, update.dtype), device=x.device)


@torch.library.custom_op("duality::pull_dropped", mutates_args=())
def _pull_dropped(
    slope: Tensor, update: Tensor, gate: Tensor | None, keys: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    """The gradients of update and of gate; the second is empty without a gate."""
    slope, update = slope.contiguous(), update.contiguous()
    out, sums, (grid, sizes) = torch.empty_like(update), _empty_parts(update, gate), _sizes(update)
    gate = None if gate is None else gate.contiguous()
    with kernels.on_device_of(out):
        _kernels().pull_dropped[grid](
            slope, update, gate, keys, out, sums, update.shape[1], *_level(share), GATE=gate is not None, **sizes
        )
    return out, sums


def _empty_parts(update: Tensor, gate: Tensor | None) -> Tensor:
    grid, _ = _sizes(update)
    return torch.empty(len(update), 0 if gate is None else grid[1], update.shape[2], device=update.device)


_add_dropped.register_fake(lambda x, update, gate, keys, share: _empty_sum(x, update))
_pull_dropped.register_fake(
    lambda slope, update, gate, keys, share: (update.new_empty(update.shape), _empty_parts(update, gate))
)


def _keep_for_backward(ctx: _Context, inputs: _Inputs, output: Tensor) -> None:  # noqa: ARG001  # torch's name
    x, update, gate, keys, ctx.share = inputs
    ctx.save_for_backward(update, gate, keys)
    ctx.type = x.dtype


def _pull(ctx: _Context, slope: Tensor) -> tuple[Tensor | None, ...]:
    update, gate, keys = ctx.saved_tensors
    of_update, parts = _pull_dropped(slope, update, gate, keys, ctx.share)
    of_gate = None if gate is None else parts.sum(1, keepdim=True).to(gate.dtype)
    return slope.to(ctx.type), of_update, of_gate, None, None


_add_dropped.register_autograd(_pull, setup_context=_keep_for_backward)
