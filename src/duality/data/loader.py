"""The loader: which sequences are in the batch of a step, as a pure function of (seed, step).

Epoch e visits the n sequences in an order drawn from a counter-based generator with the key (seed, e). The
epochs, one after another, are an endless list of sequences; step s takes places [s*B, (s+1)*B) of it:

    epoch 0: 3 0 4 1 2 | epoch 1: 1 4 2 0 3 | ...         B = 2:  (3 0) (4 1) (2 1) (4 2) (0 3) ...

A mixture of corpora (mixtures.py) has an order of its own, ``mixed``, in which each corpus has its share.

The loader has no state: a resumed run requests a later step, and one of many processes requests its rows of the
batch. ``Prefetch`` makes the batch of the next step in a thread while the current one is used; the batches are the
same with and without it.

What must hold: every epoch has every sequence exactly once, also if a batch lies across the border of two
epochs or is larger than an epoch; the rows of a batch do not depend on how it is sliced.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from duality.data.mixtures import MixedOrder, visit_epochs
from duality.data.packing import Sequences


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a step's batch."""

    ids: torch.Tensor
    """(B, L) int64."""
    valid: torch.Tensor | None
    """(B, L) bool, False on ignored padding (packing.py); None if it is True everywhere: attention is then faster."""
    labels: torch.Tensor | None = None
    """(B,) int64: the label of each row's document; None if the store has no labels."""

    def pin(self) -> Batch:
        """The same batch in pinned memory, from which a GPU copies while the CPU continues."""
        return self._each(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device; if it is pinned, the call does not wait for the copy."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def _each(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        valid, labels = (None if part is None else move(part) for part in (self.valid, self.labels))
        return Batch(move(self.ids), valid, labels)


class Batches(Protocol):
    """Where the batches of a training come from: a ``Loader``, or the one of a streamed corpus (stream.py)."""

    def batch(self, step: int, rows: slice = slice(None)) -> Batch: ...


@dataclass(frozen=True)
class Loader:
    """Batches for training, in a new order each epoch."""

    sequences: Sequences
    batch_size: int
    seed: int
    mixed: MixedOrder | None = None

    def __post_init__(self) -> None:
        """Refuse settings and sequences that training cannot use."""
        if self.batch_size < 1:
            raise ValueError(f"the batch size must be at least 1; got {self.batch_size}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"the seed must be from 0 to 2**64 - 1; got {self.seed}")
        self.sequences.labels([])  # raises an error if rows cannot have the labels of their store
        tokens, length = self.sequences.num_tokens, self.sequences.length
        if tokens < length:
            raise ValueError(
                f"the training text has {tokens} tokens, less than one sequence of length {length}; "
                f"choose a shorter one (--set data.length={max(1, tokens // 2)}) or give more text"
            )

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        """The sequences in the global batch of a step."""
        if step < 0:
            raise ValueError(f"steps count from 0; got {step}")
        count = len(self.sequences)
        first = step * self.batch_size
        numbers = np.arange(first, first + self.batch_size)
        if self.mixed is not None:
            return self.mixed.sequences(numbers)
        return visit_epochs(self.seed, numbers, count)

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """The batch of a step, or some rows of it, for one of many processes or a micro-batch."""
        chosen = self.indices(step)[rows]
        ids, valid = self.sequences.rows(chosen)
        return Batch(ids, None if bool(valid.all()) else valid, self.sequences.labels(chosen))


class Prefetch:
    """Batches made one step ahead: a request for a step also starts to ``make`` the batch of the next step in a thread.

    A batch from memory takes far less time than a step; a slow disk, a network file system and the shuffle at the start
    of an epoch take longer, and training does not wait for them. An error is raised when the step in which it happened
    is requested. The thread ends with the ``with`` block, also after an error.
    """

    def __init__(self, make: Callable[[int], Batch], until: int, pin: bool = False):
        """``make`` is a loader's ``batch``; ``until`` is the first step that is not needed; ``pin`` is for a GPU."""
        self.make = make
        self.until = until
        self.pin = pin
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._ahead: dict[int, Future[Batch]] = {}

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        ready = self._ahead.pop(step, None) or self._thread.submit(self._make, step)
        self._ahead.clear()  # a batch for a step that is not requested
        if step + 1 < self.until:
            self._ahead[step + 1] = self._thread.submit(self._make, step + 1)
        return ready.result()

    def _make(self, step: int) -> Batch:
        batch = self.make(step)
        return batch.pin() if self.pin else batch
