"""Writing a token store: one pass over the documents, in little memory.

    documents --encode (encode.py), + separator--> blocks of ids --cut at shard borders--> shard files

With ``label_names`` the label of each document is written too, as its place among the names.

After every ``SAVED_BATCHES`` batches of text what is written is flushed to the disk, and progress.json says how far it
is. A process that is killed is continued by the next one from there: the text before it is read, not encoded again.

What must hold: the ids are those of the documents in order, each document followed by the separator unless ``eos`` is
false; they depend neither on the size of the pieces nor on that of the shards, nor on how often the writing was
interrupted; with labels every document has one of the names; the folder is absent, or complete, flushed to the disk and
verified.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from io import BufferedRandom
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from duality.data.encode import Count, encode_documents
from duality.data.store import DOCUMENTS, FORMAT, LABELS, Shard, TokenStore
from duality.files.atomic import UNFINISHED, atomic_folder, file_sha256, write_atomically
from duality.files.progress import Advance, unseen
from duality.tokenizers.tokenizer import Ids, Tokenizer

if TYPE_CHECKING:
    from duality.data.documents import Document

SHARD_TOKENS = 1 << 26
SAVED_BATCHES = 16  # 32 million characters: some seconds of work


def write_store(
    folder: str | Path,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    *,
    label_names: tuple[str, ...] | None = None,
    shard_tokens: int = SHARD_TOKENS,
    advance: Advance = unseen,
    eos: bool = True,
) -> TokenStore:
    """Encode the documents, and their labels if there are names for them, into a new folder and open it.

    Every document ends with the tokenizer's separator, unless ``eos`` is false.
    """
    target, names = Path(folder), label_names or ()
    if shard_tokens < 1:
        raise ValueError(f"shard_tokens must be at least 1; got {shard_tokens}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists already; give a new folder or delete this one")
    if list(names) != sorted(set(names)):
        raise ValueError(f"label_names must be sorted and without repeats; got {names}; give sorted(set(...)) of them")
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    with atomic_folder(target, resume=True) as partial:
        if names:
            documents = _write_labels(documents, names, partial / LABELS)
        with _Writing(partial, np.dtype(dtype), shard_tokens) as writing:
            count = writing.count
            if count.bytes:
                advance(count.bytes, tokens=count.tokens)
            for ids in encode_documents(documents, tokenizer, count, writing.ends, advance, eos=eos):
                writing.add(ids)
                if count.batches % SAVED_BATCHES == 0:
                    writing.save()
            shards = writing.finish()
        if count.characters == 0:
            raise ValueError(f"no text in the {count.documents} document(s) to encode: give a corpus with text in it")
        store = TokenStore(
            partial,
            FORMAT,
            dtype=dtype,
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.fingerprint,
            num_tokens=count.tokens,
            num_documents=count.documents,
            num_characters=count.characters,
            num_bytes=count.bytes,
            shards=shards,
            documents_sha256=file_sha256(partial / DOCUMENTS),
            label_names=names,
            labels_sha256=file_sha256(partial / LABELS) if names else None,
        )
        store.write_index()
        TokenStore.open(partial).verify()
    return TokenStore.open(target)


class _Writing:
    """The files of a store that is being written; it begins where a process has left off that was killed."""

    def __init__(self, folder: Path, dtype: np.dtype[np.unsignedinteger], shard_tokens: int):
        self.folder, self.dtype, self.shard_tokens = folder, dtype, shard_tokens
        self.count = self.saved_count()
        self.num_tokens = self.count.tokens
        sizes = self.sizes(self.num_tokens)
        for file in folder.glob("shard-*.bin"):
            if file.name not in sizes:
                file.unlink()
        last = list(sizes)[-1]
        self.ends = _open_behind(folder / DOCUMENTS, 8 * self.count.documents)
        self.stream = _open_behind(folder / last, sizes[last] * dtype.itemsize)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.close()
        self.stream.close()

    def saved_count(self) -> Count:
        """What the files have for certain, as progress.json says; nothing if they have less than that."""
        try:
            count = Count(**json.loads((self.folder / UNFINISHED).read_text(encoding="utf-8")))
            sizes = self.sizes(count.tokens)
            needed = {name: size * self.dtype.itemsize for name, size in sizes.items()}
            needed[DOCUMENTS] = 8 * count.documents
            enough = all(size == 0 or (self.folder / name).stat().st_size >= size for name, size in needed.items())
            return count if enough else Count()
        except (OSError, ValueError, TypeError):
            return Count()

    def add(self, ids: Ids) -> None:
        """Write ids behind the others, into a new file where one is full."""
        while len(ids):
            room = self.shard_tokens - self.num_tokens % self.shard_tokens
            part, ids = ids[:room], ids[room:]
            self.stream.write(part.astype(self.dtype).tobytes())
            self.num_tokens += len(part)
            if self.num_tokens % self.shard_tokens == 0:
                self.flush()
                self.stream.close()
                self.stream = _open_behind(self.folder / list(self.sizes(self.num_tokens))[-1], 0)

    def flush(self) -> None:
        """Flush everything to the disk."""
        for stream in (self.stream, self.ends):
            stream.flush()
            os.fsync(stream.fileno())

    def save(self) -> None:
        """Flush everything to the disk, and say how far it is."""
        self.flush()
        write_atomically(self.folder / UNFINISHED, json.dumps(asdict(self.count)))

    def sizes(self, num_tokens: int) -> dict[str, int]:
        """The tokens of each file of a store of ``num_tokens``; the last file is not full, and may be empty."""
        full, rest = divmod(num_tokens, self.shard_tokens)
        return {f"shard-{number:05d}.bin": size for number, size in enumerate([self.shard_tokens] * full + [rest])}

    def finish(self) -> tuple[Shard, ...]:
        """The entries of all files, which are complete."""
        self.flush()
        sizes = self.sizes(self.num_tokens)
        (self.folder / UNFINISHED).unlink(missing_ok=True)
        last = list(sizes)[-1]
        if not sizes[last]:
            (self.folder / last).unlink()
            del sizes[last]
        return tuple(Shard(name, size, file_sha256(self.folder / name)) for name, size in sizes.items())


def _open_behind(path: Path, size: int) -> BufferedRandom:
    """A file to write into behind its first ``size`` bytes; what it has beyond them is removed."""
    path.touch()
    stream = path.open("r+b")
    stream.truncate(size)
    stream.seek(size)
    return stream


def _write_labels(documents: Iterable[Document], names: tuple[str, ...], path: Path) -> Iterator[Document]:
    """The same documents; the place of each label among the names is written to a file."""
    places = {name: place for place, name in enumerate(names)}
    with path.open("wb") as stream:
        for document in documents:
            label = require_label(document)
            if label not in places:
                raise ValueError(
                    f"the document {document.name} has the label {label!r}; allowed are {', '.join(names)}: "
                    "change it, or leave the document out"
                )
            stream.write(np.array([places[label]], dtype="<i4").tobytes())
            yield document


def require_label(document: Document) -> str:
    """The document's label; a document without one is an error."""
    if document.label is None:
        raise ValueError(
            f"the document {document.name} has no label, and labels were requested: write a string or a whole number "
            'under the key "label" of a .jsonl line, or give a folder whose text files are in subfolders named by '
            "their label, or request no labels"
        )
    return document.label
