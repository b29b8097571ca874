"""Streams: a corpus that is read some documents at a time while a training goes on, for one larger than the disk.

    documents   0 ... N-1 | N ... 2N-1 | 2N ... 3N-1 | ...      N: data.stream of a recipe
    block           0     |      1     |       2     | ...      a token store each, deleted when it was used

Block 0 is the store for training of the prepared corpus, without what is held out of it for validation. Every other
block is tokenized in a thread while the one before it is used, and the one before that is deleted. After the last
document the first block follows again: one visit of a block after another is an endless list, and a training takes
places [s*B, (s+1)*B) of it at step s, as the loader does; visit v has the sequences of its block in the order of epoch
v. A corpus of a single block therefore has the same batches as one that is not streamed.

``_Index`` keeps how many sequences each block has, and the checksum of its tokens, in a file: a resumed training reads
the text up to its block again, and tokenizes none of it.

What must hold: the batch of a step depends on the corpus, the seed and the step only, whatever was interrupted; the
disk has at most a few blocks at any time; a block that is made again with other tokens is an error.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from duality.data.documents import Document
from duality.data.encode import write_store
from duality.data.loader import Batch, Loader, epoch_order
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.files.atomic import write_atomically
from duality.tokenizers.tokenizer import Tokenizer

INDEX = "blocks.json"
STEPS_BEHIND = 2  # how far another process that uses the same blocks may be behind


@dataclass(frozen=True)
class _Index:
    """What is known of the blocks: the sequences and the checksum of each, and whether the last one is among them."""

    sequences: tuple[int, ...]
    checksums: tuple[str, ...]
    complete: bool = False

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """How many sequences there are up to and including each block."""
        return tuple(accumulate(self.sequences))

    @classmethod
    def read(cls, path: Path) -> _Index | None:
        """The index in a file; None if there is none."""
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found = cls(tuple(content["sequences"]), tuple(content["checksums"]), content["complete"])
            numbers = all(type(count) is int and count > 0 for count in found.sequences)
            if numbers and 1 <= len(found.sequences) == len(found.checksums):
                return found
        except (ValueError, KeyError, TypeError):
            pass
        raise ValueError(f"{path} is damaged: delete it, and the blocks before this step are tokenized again")

    def block(self, visit: int) -> int:
        """The block of a visit; one that is not known yet is the next one."""
        known = len(self.sequences)
        return visit % known if self.complete else min(visit, known)


class StreamLoader:
    """Batches of a streamed corpus; it is used by one thread, and its own thread makes the next block."""

    def __init__(
        self,
        head: TokenStore,
        documents: Callable[[int], Iterator[Document]],
        tokenizer: Tokenizer,
        pack: Callable[[TokenStore], Sequences],
        folder: Path,
        *,
        size: int,
        batch_size: int,
        seed: int,
        eos: bool = True,
    ):
        """``head`` is the first block; those after it have ``size`` documents and are kept in ``folder`` for a while.

        ``documents(n)`` are the documents from number n on; ``pack`` makes sequences of a store.
        """
        self.head, self.documents, self.pack, self.folder = head, documents, pack, folder
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.write = partial(write_store, tokenizer=tokenizer, label_names=head.label_names, eos=eos)
        first = Loader(pack(head), batch_size, seed).sequences  # checks what it is given
        path, entry = folder / INDEX, _describe(first)
        self.index = _Index.read(path) or _Index((entry[0],), (entry[1],))
        if (self.index.sequences[0], self.index.checksums[0]) != entry:
            raise ValueError(f"{path} is of another corpus than this one: restore the corpus, or start a new run")
        self._open: dict[int, Sequences] = {0: first}
        self._ahead: dict[int, Future[None]] = {}
        self._needed: set[int] = set()
        self._reading: tuple[int, Iterator[Document]] | None = None  # the number of the next block, and its documents
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="blocks")

    def __enter__(self) -> StreamLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """The batch of a step, or some rows of it."""
        if step < 0:
            raise ValueError(f"steps count from 0; got {step}")
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        found = [self._visit(place) for place in places[rows]]
        oldest, _ = self._visit(max(0, step - STEPS_BEHIND) * self.batch_size)
        newest, _ = self._visit(places[-1])
        # The thread makes the next block, so that it is there when its first sequence is requested.
        following = self.index.block(newest + 1)
        if following not in self._open and following not in self._ahead and not self._place(following).exists():
            self._ahead[following] = self._thread.submit(self._write, following)
        # All blocks but those of some visits are deleted.
        needed = {self.index.block(visit) for visit in range(oldest, newest + 2)} | {len(self.index.sequences)}
        if needed != self._needed:
            self._needed = needed
            for path in list(self.folder.glob("block-*")):
                if (number := int(path.name.removeprefix("block-"))) not in needed:
                    self._delete(number)
        parts: list[tuple[Sequences, npt.NDArray[np.int64]]] = []
        for visit in dict.fromkeys(visit for visit, _ in found):  # each once and in order
            block = self.index.block(visit)
            if block not in self._open:
                self._make(block)
                self._open[block] = self.pack(TokenStore.open(self._place(block)))
            order = epoch_order(self.seed, visit, len(self._open[block]))
            parts.append((self._open[block], order[[place for other, place in found if other == visit]]))
        ids, valid = map(torch.cat, zip(*(sequences.rows(chosen) for sequences, chosen in parts)))
        kinds = Sequences.labels, Sequences.padding_of, Sequences.paid
        optional = [[kind(sequences, chosen) for sequences, chosen in parts] for kind in kinds]
        joined = (
            torch.cat(there) if (there := [own for own in some if own is not None]) else None for some in optional
        )
        return Batch(ids, None if bool(valid.all()) else valid, *joined)

    def _visit(self, place: int) -> tuple[int, int]:
        """The visit that a place of the endless list lies in, and which place of it it is."""
        while place >= self.index.ends[-1] and not self.index.complete:
            last = len(self.index.ends)
            self._make(last)
            if place >= self.index.ends[-1]:
                self._delete(last)  # a later one is requested: the index of this training was lost
        ends = self.index.ends
        passes, rest = divmod(place, ends[-1])
        block = bisect_right(ends, rest)
        return passes * len(ends) + block, rest - (ends[block - 1] if block else 0)

    def _place(self, number: int) -> Path:
        """The folder of a block."""
        return self.folder / f"block-{number:06d}"

    def _make(self, number: int) -> None:
        """Make a block, if it is not there and there are documents for it."""
        making = self._ahead.pop(number, None) or self._thread.submit(self._write, number)
        making.result()

    def _delete(self, number: int) -> None:
        """Delete a block; the first one belongs to the corpus."""
        if number:
            self._open.pop(number, None)
            self._ahead.pop(number, None)
            shutil.rmtree(self._place(number), ignore_errors=True)

    def _write(self, number: int) -> None:
        """Write a block and its entry in the index; an entry that is there already must be the same."""
        target, path = self._place(number), self.folder / INDEX
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:  # other processes must not do the same at the same time
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.index = index = _Index.read(path) or self.index  # another process may have made it
            known = number < len(index.sequences)
            if index.complete and not known:
                return
            documents = iter(()) if target.exists() else self._read_block(number)
            if (first := next(documents, None)) is not None:
                self.write(target, chain((first,), documents))
            entry = _describe(self.pack(TokenStore.open(target))) if target.exists() else None
            if entry is None:
                self.index = replace(index, complete=True)
            elif not known:
                self.index = _Index((*index.sequences, entry[0]), (*index.checksums, entry[1]))
            elif entry != (index.sequences[number], index.checksums[number]):
                shutil.rmtree(target, ignore_errors=True)
                raise ValueError(
                    f"documents {number * self.size} and those after it are not those that this training has read "
                    "before: restore the corpus, or start a new run"
                )
            write_atomically(path, json.dumps(asdict(self.index)))

    def _read_block(self, number: int) -> Iterator[Document]:
        """The documents of a block, of text that is read on where the last block ended."""
        if self._reading is None or self._reading[0] != number:
            self._reading = number, self.documents(number * self.size)
        documents, self._reading = self._reading[1], None
        for document in islice(documents, self.size):
            if self._stopped.is_set():
                raise SystemExit  # the training has ended; what is written so far can be continued
            yield document
        self._reading = number + 1, documents


def _describe(sequences: Sequences) -> tuple[int, str]:
    """How many sequences there are, and what identifies the tokens of their store."""
    return len(sequences), " ".join(shard.sha256[:16] for shard in sequences.store.shards)
