"""Checkpoints written in a thread while training goes on.

Writing, checksums and flushing of a large checkpoint take many seconds; copying its tensors takes a fraction of one.
``Saver`` writes one checkpoint at a time: the next one waits until it is on the disk. Small ones, below
``LARGE`` bytes, are written at once, without a copy.

What must hold: a checkpoint is complete or absent, as ever; an error of the disk ends the training at the next
checkpoint, or at its end, and is not lost; when a training has ended, its last checkpoint is on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType

from duality.training.sharded import Groups as Groups
from duality.training.sharded import num_bytes_of

LARGE = 64 << 20


def _copy_to_host(groups: Groups) -> Groups:
    """The tensors in the memory of the host, as they are now, whatever the next steps change."""
    return {
        group: {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
        for group, tensors in groups.items()
    }


class Saver:
    """Writes checkpoints, large ones in a thread; the ``with`` block ends when all are written."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[object] | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*(() if error is None else (Exception,))):  # the first error is the one to hear of
            self.wait()
        self._thread.shutdown()

    def save(self, groups: Groups, write: Callable[[Groups], object]) -> None:
        """``write`` the tensors as they are now."""
        self.wait()
        if num_bytes_of(groups) < LARGE:
            write(groups)
        else:
            self._writing = self._thread.submit(write, _copy_to_host(groups))

    def wait(self) -> None:
        """Return when everything is written; raise what went wrong."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
