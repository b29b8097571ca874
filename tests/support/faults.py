"""Faults of storage: the n-th write, flush or rename fails.

    with faults(folder) as tally: ...                      counts the operations
    with faults(folder, fail_at=3, number=ENOSPC): ...     the third one fails
    with faults(folder, fail_at=3, number=KILL): ...       the process is killed when it is due

A write is one call of a stream's ``write``, or one file of safetensors; half of it reaches the disk, as on a full disk.
Only files below ``folder`` count.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from safetensors.torch import save_file

from duality.training import checkpoint

KILL = -1  # the number of no error: the process ends there and then


@dataclass
class Tally:
    """How many operations there were, and which of them fails; 0 is none."""

    count: int = 0
    fail_at: int = 0
    number: int = 0

    def due(self) -> bool:
        """Count one operation; whether it is the one that fails."""
        self.count += 1
        if self.count == self.fail_at and self.number == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.count == self.fail_at

    def error(self, path: object = None) -> OSError:
        text = os.strerror(self.number)
        return OSError(self.number, text) if path is None else OSError(self.number, text, os.fspath(str(path)))


class Stream:
    """A stream whose writes may fail."""

    def __init__(self, stream: Any, tally: Tally):
        self._stream, self._tally = stream, tally

    def write(self, data: Any) -> int:
        if self._tally.due():
            self._stream.write(data[: len(data) // 2])
            raise self._tally.error()  # the error of a write names no file
        return int(self._stream.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Stream:
        self._stream.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._stream.__exit__(*problem)


@contextmanager
def faults(folder: Path, fail_at: int = 0, number: int = 0) -> Iterator[Tally]:
    """Count the operations below ``folder`` and let one fail with the error ``number``."""
    tally = Tally(fail_at=fail_at, number=number)

    def inside(path: object) -> bool:
        return isinstance(path, (str, Path)) and Path(path).is_relative_to(folder)

    def opening(real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            stream = real(file, mode, *rest, **options)
            return Stream(stream, tally) if inside(file) and set(mode) & set("wax+") else stream

        return opened

    def moving(real: Callable[..., None]) -> Callable[..., None]:
        def moved(source: Any, target: Any, **options: Any) -> None:
            if inside(source) and tally.due():
                raise tally.error(source)
            real(source, target, **options)

        return moved

    def flushed(_descriptor: int) -> None:  # no more than counted: a real one takes longer than all the rest
        if tally.due():
            raise tally.error()

    def saved(tensors: Any, path: Path, metadata: Any = None, real: Callable[..., None] = save_file) -> None:
        if tally.due():
            Path(path).write_bytes(b"half")
            raise SafetensorError(f"I/O error: {os.strerror(tally.number)} (os error {tally.number})")
        real(tensors, path, metadata)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", opening(io.open))
        patch.setattr(builtins, "open", opening(builtins.open))
        patch.setattr(os, "replace", moving(os.replace))
        patch.setattr(os, "rename", moving(os.rename))
        patch.setattr(os, "fsync", flushed)
        patch.setattr(checkpoint, "save_file", saved)
        yield tally
