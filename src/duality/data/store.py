"""The token store: a tokenized corpus on the disk, mapped into memory, of any size.

    <folder>/index.json         counts, checksums, the tokenizer's fingerprint
             shard-00000.bin    ids one after another, little-endian uint16 (K <= 65 536) or uint32
             shard-00001.bin    ...
             documents.bin      int64: where each document ends, counted in tokens, including its separator
             labels.bin         int32: the label of each document, a place in the sorted ``label_names`` of the index;
                                only if labels were requested

The shards are one long row of ids, ``store[a:b]``, for every size of the shards. Every document ends with the
separator. The store also counts the characters and the UTF-8 bytes of its text, without separators, from which
the bits per character and per byte follow. (These are bits of that text only if the tokenizer gives the text back
exactly; see tokenizers/tokenizer.py.)

What must hold: a store on the disk is complete or absent; a file of the wrong size is an error on opening;
``verify`` finds every changed bit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duality.files.atomic import file_sha256
from duality.tokenizers.tokenizer import Ids

FORMAT = 2
INDEX = "index.json"
DOCUMENTS = "documents.bin"
LABELS = "labels.bin"


@dataclass(frozen=True)
class Shard:
    """One file of ids."""

    name: str
    num_tokens: int
    sha256: str


@dataclass(frozen=True)
class StoreIndex:
    """The content of index.json."""

    format: int
    dtype: str
    vocab_size: int
    tokenizer: str
    num_tokens: int
    num_documents: int
    num_characters: int
    num_bytes: int
    shards: tuple[Shard, ...]
    documents_sha256: str
    label_names: tuple[str, ...]
    """Sorted; empty without labels."""
    labels_sha256: str | None


@dataclass(frozen=True)
class TokenStore:
    """A tokenized corpus: one row of ids, read by slices."""

    folder: Path
    index: StoreIndex

    @classmethod
    def open(cls, folder: str | Path) -> TokenStore:
        """The store in a folder; a missing file or a file of the wrong size is an error."""
        store = cls(Path(folder), _read_index(Path(folder) / INDEX))
        item = np.dtype(store.index.dtype).itemsize
        sizes = {shard.name: shard.num_tokens * item for shard in store.index.shards}
        sizes[DOCUMENTS] = store.num_documents * 8
        if store.label_names:
            sizes[LABELS] = store.num_documents * 4
        for name, expected in sizes.items():
            path = store.folder / name
            found = path.stat().st_size if path.is_file() else 0
            if found != expected:
                raise ValueError(
                    f"{path} is damaged: {found} bytes, not {expected}; delete the folder and make it again"
                )
        return store

    def verify(self) -> None:
        """Read all files and compare their checksums; a difference is an error."""
        checksums: dict[str, str | None] = {shard.name: shard.sha256 for shard in self.index.shards}
        checksums[DOCUMENTS] = self.index.documents_sha256
        if self.label_names:
            checksums[LABELS] = self.index.labels_sha256
        for name, expected in checksums.items():
            path = self.folder / name
            if file_sha256(path) != expected:
                raise ValueError(f"{path} is damaged: its sha256 has changed; delete the folder and make it again")

    @property
    def vocab_size(self) -> int:
        """K of the tokenizer that encoded the text."""
        return self.index.vocab_size

    @property
    def num_characters(self) -> int:
        """The number of characters of the text, without separators."""
        return self.index.num_characters

    @property
    def num_bytes(self) -> int:
        """The number of UTF-8 bytes of the text, without separators."""
        return self.index.num_bytes

    @property
    def num_documents(self) -> int:
        """The number of documents; each ends with a separator."""
        return self.index.num_documents

    @cached_property
    def document_ends(self) -> npt.NDArray[np.int64]:
        """For each document the number of tokens up to and including its separator."""
        return np.memmap(self.folder / DOCUMENTS, dtype="<i8", mode="r")

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels, in the order of their numbers; empty without labels."""
        return self.index.label_names

    @cached_property
    def labels(self) -> npt.NDArray[np.int32] | None:
        """For each document the place of its label in ``label_names``; None without labels."""
        return np.memmap(self.folder / LABELS, dtype="<i4", mode="r") if self.label_names else None

    @cached_property
    def maps(self) -> tuple[npt.NDArray[np.unsignedinteger], ...]:
        """The shards, mapped into memory."""
        return tuple(np.memmap(self.folder / shard.name, self.index.dtype, "r") for shard in self.index.shards)

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """The place of each shard's first token in the store."""
        lengths = [shard.num_tokens for shard in self.index.shards]
        return np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)

    def __len__(self) -> int:
        """The number of tokens, including separators."""
        return self.index.num_tokens

    def __getitem__(self, places: slice) -> Ids:
        """The ids of a slice, which may lie across the borders of shards."""
        start, stop, step = places.indices(len(self))
        if step != 1:
            raise ValueError(f"a token store is read by slices of step 1; got {places}")
        ids = np.empty(max(0, stop - start), dtype=np.int64)
        number = int(np.searchsorted(self.starts, start, side="right")) - 1
        done = 0
        while done < len(ids):
            offset = start + done - int(self.starts[number])
            part = self.maps[number][offset : offset + len(ids) - done]
            ids[done : done + len(part)] = part
            done += len(part)
            number += 1
        return ids


def _read_index(path: Path) -> StoreIndex:
    """The content of index.json."""
    if not path.is_file():
        raise ValueError(
            f"{path.parent} is no token store: it has no {path.name}; make one with write_store or prepare"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content["format"]
        if found == FORMAT:
            shards = tuple(Shard(**shard) for shard in content.pop("shards"))
            index = StoreIndex(shards=shards, label_names=tuple(content.pop("label_names")), **content)
            _check_index(index)
            return index
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete the folder and make it again") from None
    raise ValueError(f"{path} has the format {found}, not {FORMAT}; delete the folder and make it again")


def _check_index(index: StoreIndex) -> None:
    """Refuse values that no store has; the names of shards in particular are those of files in its folder."""
    counts = (index.vocab_size, index.num_tokens, index.num_documents, index.num_characters, index.num_bytes)
    if index.dtype not in ("<u2", "<u4") or any(type(count) is not int or count < 0 for count in counts):
        raise ValueError(f"it has the type {index.dtype!r} and the counts {counts}")
    for number, shard in enumerate(index.shards):
        if shard.name != f"shard-{number:05d}.bin" or type(shard.num_tokens) is not int or shard.num_tokens < 0:
            raise ValueError(f"it has a shard {shard.name!r} of {shard.num_tokens!r} tokens")
    if sum(shard.num_tokens for shard in index.shards) != index.num_tokens:
        raise ValueError(f"its shards do not have {index.num_tokens} tokens together")
