"""The loader: which sequences make up the batch of a step, as a pure function of (seed, step).

Epoch e visits the n sequences in an order drawn from a counter-based generator with the key (seed, e). The
epochs, one after another, are an endless row of sequences; step s takes places [s*B, (s+1)*B) of it:

    epoch 0: 3 0 4 1 2 | epoch 1: 1 4 2 0 3 | ...         B = 2:  (3 0) (4 1) (2 1) (4 2) (0 3) ...

There is no state: to resume is to ask for a later step, and a process of many asks for its rows of the same
batch. ``Prefetch`` makes the next step's batch while the present one is computed with; which thread made a batch
cannot be seen in it.

What must hold: every epoch has every sequence exactly once, also where a batch lies across the border of two
epochs or is larger than an epoch; the rows of a batch do not depend on how it is sliced.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from duality.data.packing import Sequences


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a step's batch."""

    ids: torch.Tensor
    """(B, L) int64."""
    mask: torch.Tensor | None
    """(B, L) bool, True on real tokens; None when all are real, so that attention may take its fast path."""
    index: torch.Tensor
    """(B,) int64: each row's place in the global batch, which is what its noise depends on."""
    labels: torch.Tensor | None = None
    """(B,) int64: the label of each row's document; None where the store has no labels."""

    def pinned(self) -> Batch:
        """The same in memory that a GPU reads by itself, while the CPU goes on."""
        return self._each(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """The same on a device; if it was pinned, without waiting until it has arrived."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def _each(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        mask, labels = (None if part is None else move(part) for part in (self.mask, self.labels))
        return Batch(move(self.ids), mask, self.index, labels)


@dataclass(frozen=True)
class Loader:
    """Batches for training, shuffled anew each epoch."""

    sequences: Sequences
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse what cannot be trained on."""
        if self.batch_size < 1:
            raise ValueError(f"the batch size must be at least 1; got {self.batch_size}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"the seed must be from 0 to 2**64 - 1; got {self.seed}")
        self.sequences.labels([])  # for its error: rows that cannot have the labels their store has
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
        epochs, places = np.divmod(np.arange(first, first + self.batch_size), count)
        chosen = np.empty(self.batch_size, dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            chosen[here] = epoch_order(self.seed, epoch, count)[places[here]]
        return chosen

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """The batch of a step, or the rows of it that a process or a micro-batch takes."""
        chosen = self.indices(step)[rows]
        ids, mask = self.sequences.rows(chosen)
        index = torch.arange(self.batch_size)[rows]
        return Batch(ids, None if bool(mask.all()) else mask, index, self.sequences.labels(chosen))


class Prefetch:
    """Batches one step ahead: asked for a step, it begins to ``make`` the next one's in a thread.

    A warm batch takes far less than a step; a cold disk, a network file system and the shuffle at the start of an epoch
    need not be waited for either. An error is raised to whoever asks for the step that it happened in. Leaving the
    ``with`` block ends the thread, whatever the reason.
    """

    def __init__(self, make: Callable[[int], Batch], until: int, pin: bool = False):
        """``make`` is a loader's ``batch``; from step ``until`` on nothing is made ahead; ``pin`` is for a GPU."""
        self.make = make
        self.until = until
        self.pin = pin
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._ahead: dict[int, Future[Batch]] = {}

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        ready = self._ahead.pop(step, None) or self._thread.submit(self._make, step)
        self._ahead.clear()  # what was made for a step that nobody asked for
        if step + 1 < self.until:
            self._ahead[step + 1] = self._thread.submit(self._make, step + 1)
        return ready.result()

    def _make(self, step: int) -> Batch:
        batch = self.make(step)
        return batch.pinned() if self.pin else batch


@lru_cache(maxsize=2)  # the epoch under way and, where a batch lies across the border, the next
def epoch_order(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    """The order of an epoch."""
    key = np.array([seed, epoch], dtype=np.uint64)
    order = np.random.Generator(np.random.Philox(key=key)).permutation(count)
    order.setflags(write=False)
    return order
