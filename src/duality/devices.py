"""Work on a device, and when the host waits for it.

A GPU does what it is asked one after another, while the host goes on and asks for more. Where the host needs a number
of the device, for a condition or for a shape, it waits until all is done, and then the device waits for the host. Where
no shape depends on numbers, a step can also be compiled as a whole, or recorded and played again (CUDA graphs). A
CPU is never waited for: there a number is at hand, and what need not be computed is left out.

    static_shapes   whether work on a device has shapes that no number decides
    positions       the positions to compute: those that need it, or all of them
    positions_where the positions alone, with one wait
    finite          an output, refused if it is not a number: at once, or when ``refused_at_end`` ends

What must hold: results are the same in both ways, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from torch import Tensor

_WITHOUT_WAIT = ("cpu", "meta")
_kept = local()  # ``seen``: whether an output of this thread was not finite


def static_shapes(device: torch.device) -> bool:
    """Whether work on this device has shapes that no number decides: all rows are computed, also those not needed."""
    return device.type not in _WITHOUT_WAIT or torch.compiler.is_compiling()


def positions(needed: Tensor) -> Tensor:
    """The flat positions where ``needed`` is True, in rising order; all of them where shapes are static."""
    if static_shapes(needed.device):
        return torch.arange(needed.numel(), device=needed.device)
    return needed.flatten().nonzero()[:, 0]


def positions_where(*flags: Tensor) -> list[Tensor]:
    """The flat positions where each of the flags is True, in rising order. The host waits once for all of them."""
    counts = torch.stack([each.sum() for each in flags]).tolist()
    return [torch.nonzero_static(each.flatten(), size=count)[:, 0] for each, count in zip(flags, counts)]


def finite(values: Tensor) -> Tensor:
    """The values, refused if they are not numbers: bad weights would otherwise write noise without an error.

    Where the answer would have to be waited for, it is kept for the end of ``refused_at_end``.
    """
    # one state is enough: a softmax with a NaN in it is NaN everywhere
    bad = values[..., 0].isnan().any()
    if not static_shapes(values.device):
        _refuse(bad)
    elif (seen := _seen()) is not None:
        seen.logical_or_(bad)
    return values


def _seen() -> Tensor | None:
    found: Tensor | None = getattr(_kept, "seen", None)
    return found


@contextmanager
def refused_at_end(device: torch.device) -> Iterator[None]:
    """Refuse what was not ``finite`` in this block when it ends, if the device would have been waited for."""
    if not static_shapes(device):
        yield
        return
    before, seen = _seen(), torch.zeros((), dtype=torch.bool, device=device)
    _kept.seen = seen
    try:
        yield
    finally:
        _kept.seen = before
    _refuse(seen)


def _refuse(bad: Tensor) -> None:
    """An error if this is True."""
    if bool(bad):
        raise ValueError("the network's output is not a number: its weights are bad")
