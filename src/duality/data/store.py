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
from collections.abc import Iterator
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
class _Shard:
    """One file of ids."""

    name: str
    num_tokens: int
    sha256: str


@dataclass(frozen=True)
class TokenStore:
    """A tokenized corpus, one row of ids that is read by slices; the other fields are the content of index.json."""

    folder: Path
    format: int
    dtype: str
    vocab_size: int
    """K of the tokenizer that encoded the text."""
    tokenizer: str
    """Its fingerprint."""
    num_tokens: int
    num_documents: int
    num_characters: int
    """of the text, without separators"""
    num_bytes: int
    """of the text in UTF-8, without separators"""
    shards: tuple[_Shard, ...]
    documents_sha256: str
    label_names: tuple[str, ...]
    """Sorted, in the order of their numbers; empty without labels."""
    labels_sha256: str | None

    @classmethod
    def open(cls, folder: str | Path) -> TokenStore:
        """The store that index.json describes; a missing file or a file of the wrong size is an error.

        Values that no store has, such as names of other files, are refused.
        """
        folder = Path(folder)
        path = folder / INDEX
        if not path.is_file():
            raise ValueError(f"{folder} is no token store: it has no {INDEX}; make one with write_store or prepare")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if (version := content["format"]) == FORMAT:
                shards = tuple(_Shard(**shard) for shard in content.pop("shards"))
                store = cls(folder, shards=shards, label_names=tuple(content.pop("label_names")), **content)
                names = ("vocab_size", "num_tokens", "num_documents", "num_characters", "num_bytes")
                counts = tuple(getattr(store, name) for name in names)
                if store.dtype not in ("<u2", "<u4") or any(type(count) is not int or count < 0 for count in counts):
                    raise ValueError(f"it has the type {store.dtype!r} and the counts {counts}")
                for number, shard in enumerate(shards):
                    size = shard.num_tokens
                    if shard.name != f"shard-{number:05d}.bin" or type(size) is not int or size < 0:
                        raise ValueError(f"it has a shard {shard.name!r} of {size!r} tokens")
                if sum(shard.num_tokens for shard in shards) != store.num_tokens:
                    raise ValueError(f"its shards do not have {store.num_tokens} tokens together")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({error}); delete the folder and make it again") from None
        if version != FORMAT:
            raise ValueError(f"{path} has the format {version}, not {FORMAT}; delete the folder and make it again")
        for path, expected, _ in store._files():
            found = path.stat().st_size if path.is_file() else 0
            if found != expected:
                raise ValueError(
                    f"{path} is damaged: {found} bytes, not {expected}; delete the folder and make it again"
                )
        return store

    def verify(self) -> None:
        """Read all files and compare their checksums; a difference is an error."""
        for path, _, expected in self._files():
            if file_sha256(path) != expected:
                raise ValueError(f"{path} is damaged: its sha256 has changed; delete the folder and make it again")

    def _files(self) -> Iterator[tuple[Path, int, str | None]]:
        """Each file with its bytes and its checksum, as the index says."""
        for shard in self.shards:
            yield self.folder / shard.name, shard.num_tokens * np.dtype(self.dtype).itemsize, shard.sha256
        yield self.folder / DOCUMENTS, self.num_documents * 8, self.documents_sha256
        if self.label_names:
            yield self.folder / LABELS, self.num_documents * 4, self.labels_sha256

    @cached_property
    def document_ends(self) -> npt.NDArray[np.int64]:
        """For each document the number of tokens up to and including its separator."""
        return np.memmap(self.folder / DOCUMENTS, dtype="<i8", mode="r")

    @cached_property
    def labels(self) -> npt.NDArray[np.int32] | None:
        """For each document the place of its label in ``label_names``; None without labels."""
        return np.memmap(self.folder / LABELS, dtype="<i4", mode="r") if self.label_names else None

    @cached_property
    def maps(self) -> tuple[npt.NDArray[np.unsignedinteger], ...]:
        """The shards, mapped into memory."""
        return tuple(np.memmap(self.folder / shard.name, self.dtype, "r") for shard in self.shards)

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """The place of each shard's first token in the store."""
        lengths = [shard.num_tokens for shard in self.shards]
        return np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)

    def __len__(self) -> int:
        """The number of tokens, including separators."""
        return self.num_tokens

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
