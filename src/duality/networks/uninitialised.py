"""Networks without numbers: a network of any size is built in milliseconds and no memory, to read its shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode


class _Uninitialised(TorchFunctionMode):
    """Leave out what changes a tensor in place: there are no numbers to change, and pretending to takes seconds."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        if func.__name__.endswith("_") and not func.__name__.endswith("__"):
            return args[0] if args else named["tensor"]
        return func(*args, **named)


@contextmanager
def uninitialised() -> Iterator[None]:
    """What is built in this block is on a device that stores nothing, and is not initialised."""
    with torch.device("meta"), _Uninitialised():
        yield
