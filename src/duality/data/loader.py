"""The loader: which sequences are in the batch of a step, as a pure function of (seed, step).

Epoch e visits the n sequences in an order drawn from a counter-based generator with the key (seed, e). The
epochs, one after another, are an endless list of sequences; step s takes places [s*B, (s+1)*B) of it:

    epoch 0: 3 0 4 1 2 | epoch 1: 1 4 2 0 3 | ...         B = 2:  (3 0) (4 1) (2 1) (4 2) (0 3) ...

A mixture of corpora (named.py) has an order of its own, ``mixed``, in which each corpus has its share.
``MixedOrder`` says which sequence is at which place of a training:

    place n   ->  its group, by a pattern of PERIOD places that is shuffled once and repeated
              ->  how many places before n have the same group
              ->  the sequence at that place of the group's own epochs, each of which has every sequence once

The loader has no state: a resumed run requests a later step, and one of many processes requests its rows of the
batch. ``Prefetch`` makes the batch of the next step in a thread while the current one is used; the batches are the
same with and without it.

What must hold: every epoch has every sequence exactly once, also if a batch lies across the border of two
epochs or is larger than an epoch; the rows of a batch do not depend on how it is sliced. Of a mixture, each corpus has
its share in every PERIOD places, to a thousandth; within a corpus every sequence comes once in each of its epochs; the
order is a pure function of the seed and the place.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from duality.data.packing import Places, Sequences

PERIOD = 1000


@lru_cache(maxsize=16)  # the current epoch and, if a batch lies across the border, the next one; of each corpus
def epoch_order(seed: int, epoch: int, count: int) -> Places:
    """The order in which an epoch visits ``count`` sequences; read-only, as it is cached."""
    key = np.array([seed, epoch], dtype=np.uint64)
    order = np.random.Generator(np.random.Philox(key=key)).permutation(count)
    order.setflags(write=False)
    return order


def _visit_epochs(seed: int, places: Places, count: int, first: int = 0) -> Places:
    """The sequences at some places of the epochs of ``count`` sequences, one after another from epoch ``first`` on."""
    epochs, within = np.divmod(places, count)
    chosen = np.empty(len(places), dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        chosen[here] = epoch_order(seed, first + epoch, count)[within[here]]
    return chosen


@dataclass(frozen=True)
class MixedOrder:
    """The order of a mixture whose groups of sequences end at ``ends``, one behind the other."""

    ends: tuple[int, ...]
    weights: tuple[float, ...]
    seed: int

    @cached_property
    def counts(self) -> Places:
        """How many places of a period each group has: its share, at least one."""
        exact = np.array(self.weights) * PERIOD
        counts: Places = np.maximum(1, np.floor(exact)).astype(np.int64)
        order = np.argsort(-(exact - counts), kind="stable")
        for place in range(PERIOD - int(counts.sum())):
            counts[order[place % len(order)]] += 1
        while counts.sum() > PERIOD:  # many groups with tiny shares
            counts[np.argmax(counts)] -= 1
        return counts

    @cached_property
    def pattern(self) -> tuple[Places, Places]:
        """The group of each place of a period, and how many places before it that group has."""
        groups = epoch_order(self.seed, (1 << 64) - 1, PERIOD)
        groups = np.repeat(np.arange(len(self.counts)), self.counts)[groups]
        same = groups[:, None] == groups[None, :]
        return groups, np.tril(same, -1).sum(1)

    def sequences(self, places: Places) -> Places:
        """The sequences at some places."""
        groups, before = self.pattern
        periods, slots = np.divmod(places, PERIOD)
        chosen = groups[slots]
        ranks = periods * self.counts[chosen] + before[slots]
        starts = (0, *self.ends[:-1])
        found = np.empty(len(places), dtype=np.int64)
        for group in np.unique(chosen).tolist():
            here, size = chosen == group, self.ends[group] - starts[group]
            # no two groups, nor a corpus alone, have the same orders
            found[here] = starts[group] + _visit_epochs(self.seed, ranks[here], size, group + 1 << 40)
        return found


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a step's batch."""

    ids: torch.Tensor
    """(B, L) int64."""
    valid: torch.Tensor | None
    """(B, L) bool, False on ignored padding (packing.py); None if it is True everywhere: attention is then faster."""
    labels: torch.Tensor | None = None
    """(B,) int64: the label of each row's document; None if the store has no labels."""
    padding: torch.Tensor | None = None
    """(B, L) bool: the valid tokens that are padding; None if it is not modelled."""
    paid: torch.Tensor | None = None
    """(B, L) bool: the tokens whose loss is learnt from; None if these are the valid ones."""

    def pin(self) -> Batch:
        """The same batch in pinned memory, from which a GPU copies while the CPU continues."""
        return self._each(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device; if it is pinned, the call does not wait for the copy."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def _each(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        optional = (self.valid, self.labels, self.padding, self.paid)
        return Batch(move(self.ids), *(None if part is None else move(part) for part in optional))


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
        tokens, length = len(self.sequences.store), self.sequences.length
        if tokens < length:
            raise ValueError(
                f"the training text has {tokens} tokens, less than one sequence of length {length}; "
                f"choose a shorter one (--set data.length={max(1, tokens // 2)}) or give more text"
            )

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        """The sequences in the global batch of a step."""
        if step < 0:
            raise ValueError(f"steps count from 0; got {step}")
        numbers = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        if self.mixed is not None:
            return self.mixed.sequences(numbers)
        return _visit_epochs(self.seed, numbers, len(self.sequences))

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """The batch of a step, or some rows of it, for one of many processes or a micro-batch."""
        chosen = self.indices(step)[rows]
        ids, valid = self.sequences.rows(chosen)
        optional = self.sequences.labels(chosen), self.sequences.padding_of(chosen), self.sequences.paid(chosen)
        return Batch(ids, None if bool(valid.all()) else valid, *optional)


class Prefetch:
    """Batches made one step ahead: a request for a step also starts to ``make`` the batch of the next step in a thread.

    A batch from memory takes far less time than a step; a slow disk, a network file system and the shuffle at the start
    of an epoch take longer, and training does not wait for them. An error is raised when the step in which it happened
    is requested. The thread ends with the ``with`` block, also after an error.
    """

    def __init__(self, make: Callable[[int], Batch], until: int, pin: bool = False):
        """``make`` is a loader's ``batch``; ``until`` is the first step that is not needed; ``pin`` is for a GPU."""
        self.make = (lambda step: make(step).pin()) if pin else make
        self.until = until
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._ahead: dict[int, Future[Batch]] = {}

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        ready = self._ahead.pop(step, None) or self._thread.submit(self.make, step)
        self._ahead.clear()  # a batch for a step that is not requested
        if step + 1 < self.until:
            self._ahead[step + 1] = self._thread.submit(self.make, step + 1)
        return ready.result()
