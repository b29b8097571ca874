"""Encoding: the documents of a corpus become a token store, in one pass, in parallel and in little memory.

    documents --cut at borders--> parts of text --encode a batch in parallel, + separator--> blocks of ids
              --cut at shard borders--> shard files

The tokenizers of the library (BPE, word pieces, any tokenizer.json) encode the parts of a batch in parallel, in as many
threads as there are cores (or RAYON_NUM_THREADS); BPE is encoded by `tiktoken` if it is installed and there is much
text, with the same ids (fast_pairs.py). For BPE and word pieces a long text is first cut at borders that no token
crosses. Another tokenizer.json may treat the beginning of a text in its own way, so for it the pieces of
a document are joined, up to 16 million characters. Every other tokenizer is given the pieces of a document one by one,
as they are.

With ``label_names`` the label of each document is written too, as its place among the names.

After every ``SAVED_BATCHES`` batches of text what is written is flushed to the disk, and progress.json says how far it
is. A process that is killed is continued by the next one from there: the text before it is read, not encoded again.

What must hold: the ids are those of the documents in order, each document followed by the separator unless ``eos`` is
false; they depend neither on the size of pieces, parts, batches and shards, nor on the number of threads, nor on how
often the writing was interrupted; an error names the document and the character; with labels every document has one of
the names; the folder is absent, or complete, flushed to the disk and verified.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from duality.data.store import DOCUMENTS, FORMAT, INDEX, LABELS, TokenStore
from duality.files.atomic import UNFINISHED, atomic_folder, file_sha256, flush_to_disk, write_atomically
from duality.files.progress import Advance, unseen
from duality.tokenizers.library import LibraryTokenizer
from duality.tokenizers.tokenizer import Ids, Tokenizer, utf8

if TYPE_CHECKING:
    from duality.data.documents import Document

PART_CHARACTERS = 1 << 16
BATCH_CHARACTERS = 1 << 21
JOINED_CHARACTERS = 1 << 24
FAST_CHARACTERS = 1 << 20
SHARD_TOKENS = 1 << 26
SAVED_BATCHES = 16  # 32 million characters: some seconds of work
_AHEAD = 2  # batches
BORDER = re.compile(r"(?<=\S)(?=[ \n])")

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class _Part:
    """A part of the text of a document, which begins at character ``start`` of it; None is the document's end."""

    document: str
    start: int
    text: str | None


def _encode_documents(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    count: Counter[str],
    ends: IO[bytes],
    advance: Advance = unseen,
    *,
    eos: bool = True,
) -> Iterator[Ids]:
    """The ids of all documents in blocks; they are counted, and the end of each document is written to ``ends``.

    Without ``eos`` no separator follows a document. ``count`` has tokens, documents, characters, bytes, and batches of
    texts that were encoded together: those that it has already are read and not encoded again. ``advance`` is called
    with the bytes and the tokens of each block.
    """
    if eos and tokenizer.separator is None:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} ids and none to end a document with: set data.eos=false, or use "
            "a tokenizer that has one, such as Characters or BPE"
        )
    separator = np.array([tokenizer.separator] if eos else [], dtype=np.int64)
    # the end of a document counts as a character
    batches = _group(_parts_of(documents, tokenizer), lambda part: len(part.text or " "), BATCH_CHARACTERS)
    todo = islice(batches, count["batches"], None)
    for batch, rows in _work_ahead(todo, partial(_encode_batch, tokenizer=tokenizer)):
        blocks = [separator if part.text is None else next(rows) for part in batch]
        is_end = np.array([part.text is None for part in batch])
        after = count["tokens"] + np.cumsum([len(block) for block in blocks])
        ends.write(after[is_end].astype("<i8").tobytes())
        texts, ids = [part.text for part in batch if part.text is not None], np.concatenate(blocks)
        num_bytes, num_characters = sum(map(num_bytes_of, texts)), sum(map(len, texts))
        documents_ended = int(is_end.sum())
        count.update(tokens=len(ids), documents=documents_ended, characters=num_characters, bytes=num_bytes, batches=1)
        advance(num_bytes, tokens=len(ids))
        yield ids


def _work_ahead(batches: Iterable[S], work: Callable[[S], T]) -> Iterator[tuple[S, T]]:
    """Each batch and what ``work`` makes of it; the next ones are worked on in two threads meanwhile.

    The library encodes without holding Python's lock, so reading and writing cost no time of their own. Two threads,
    because one of them makes arrays of what the library gave, which needs the lock.
    """
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="encoding") as threads:
        waiting: deque[tuple[S, Future[T]]] = deque()
        for batch in batches:
            waiting.append((batch, threads.submit(work, batch)))
            if len(waiting) > _AHEAD:
                begun, found = waiting.popleft()
                yield begun, found.result()
        yield from ((begun, found.result()) for begun, found in waiting)


def _parts_of(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[_Part]:
    """The parts of all documents and their ends; for a tokenizer of the library, pieces are cut or joined first."""
    cuttable = tokenizer.cuttable if isinstance(tokenizer, LibraryTokenizer) else None
    for document in documents:
        pieces, start = document.pieces, 0
        if cuttable is not None:
            cut = (part for piece in pieces for part in cut_at_borders(piece, PART_CHARACTERS))
            pieces = cut if cuttable else map("".join, _group(pieces, len, JOINED_CHARACTERS))
        for text in pieces:
            yield _Part(document.name, start, text)
            start += len(text)
        yield _Part(document.name, start, None)


def cut_at_borders(text: str, size: int) -> Iterator[str]:
    """The text in parts of at least ``size`` characters, each up to the next border; the last one is shorter.

    >>> list(cut_at_borders("one two  three", 5))
    ['one two', '  three']
    """
    start = 0
    while border := BORDER.search(text, start + size):
        yield text[start : border.start()]
        start = border.start()
    yield text[start:]


def _group(items: Iterable[S], length_of: Callable[[S], int], least: int) -> Iterator[list[S]]:
    """The items in lists that have at least the length ``least`` together; the last one may have less."""
    held, size = list[S](), 0
    for item in items:
        held.append(item)
        size += length_of(item)
        if size >= least:
            yield held
            held, size = [], 0
    if held:
        yield held


def _encode_batch(batch: Sequence[_Part], tokenizer: Tokenizer) -> Iterator[Ids]:
    """The ids of each part of a batch that has text; an error names its place in the corpus."""
    parts = [part for part in batch if part.text is not None]
    texts = [part.text or "" for part in parts]
    if isinstance(tokenizer, LibraryTokenizer):
        _apply(utf8, parts, texts)  # half a surrogate pair is an error
        rows = _apply(tokenizer.check_text_ids, parts, _library_rows(tokenizer, texts))
    else:
        rows = _apply(tokenizer.encode, parts, texts)

    def check(ids: Ids) -> Ids:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size:
            raise ValueError(f"the tokenizer gave an id outside its vocabulary of {tokenizer.vocab_size}")
        return ids

    return iter(_apply(check, parts, rows))


def _apply(function: Callable[[S], T], parts: Sequence[_Part], given: Iterable[S]) -> list[T]:
    """What a function gives for the text, or the ids, of each part; an error names the place of the part."""
    found: list[T] = []
    for part, value in zip(parts, given):
        try:
            found.append(function(value))
        except ValueError as error:
            raise ValueError(f"{part.document}, after character {part.start}: {error}") from None
    return found


def _library_rows(tokenizer: LibraryTokenizer, texts: Sequence[str]) -> list[Ids]:
    """The ids of each text by the library, or, if there is much text, by an encoder that gives the same ids sooner."""
    rows: list[Ids | None] = [None] * len(texts)
    if sum(map(len, texts)) >= FAST_CHARACTERS and tokenizer.fast is not None:
        rows = tokenizer.fast.encode(texts)
    rest = [text for text, row in zip(texts, rows) if row is None]
    found = iter(tokenizer.library.encode_batch_fast(rest, add_special_tokens=False))
    return [np.array(next(found).ids, dtype=np.int64) if row is None else row for row in rows]


def num_bytes_of(text: str) -> int:
    """The number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8"))


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
    with atomic_folder(target, resume=True) as new:
        if names:
            documents = _write_labels(documents, names, new / LABELS)
        count = _write_ids(new, documents, tokenizer, np.dtype(dtype), shard_tokens, advance, eos)
        if not count["characters"]:
            raise ValueError(
                f"no text in the {count['documents']} document(s) to encode: give a corpus with text in it"
            )
        sizes = _shard_sizes(count["tokens"], shard_tokens)
        index = {
            "format": FORMAT,
            "dtype": dtype,
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.fingerprint,
            **{f"num_{name}": count[name] for name in ("tokens", "documents", "characters", "bytes")},
            "shards": [
                {"name": name, "num_tokens": size, "sha256": file_sha256(new / name)} for name, size in sizes.items()
            ],
            "documents_sha256": file_sha256(new / DOCUMENTS),
            "label_names": names,
            "labels_sha256": file_sha256(new / LABELS) if names else None,
        }
        (new / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
        TokenStore.open(new).verify()
    return TokenStore.open(target)


def _write_ids(
    folder: Path,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    dtype: np.dtype[np.unsignedinteger],
    shard_tokens: int,
    advance: Advance,
    eos: bool,
) -> Counter[str]:
    """Write the files of ids and of the ends of documents, from where a process has left off that was killed."""

    def sizes_of(count: Counter[str]) -> dict[str, int]:
        shards = _shard_sizes(count["tokens"], shard_tokens)
        return {DOCUMENTS: 8 * count["documents"]} | {name: dtype.itemsize * size for name, size in shards.items()}

    try:  # what the files have for certain, as progress.json says; nothing if they have less than that
        count = Counter[str](**json.loads((folder / UNFINISHED).read_text(encoding="utf-8")))
        if any((folder / name).stat().st_size < size for name, size in sizes_of(count).items()):
            count = Counter()
    except (OSError, ValueError, TypeError):
        count = Counter()
    for path in (folder / DOCUMENTS, *folder.glob("shard-*.bin")):
        path.touch()
        os.truncate(path, sizes_of(count).get(path.name, 0))
    if count["bytes"]:
        advance(count["bytes"], tokens=count["tokens"])
    written, changed = count["tokens"], {folder / DOCUMENTS}
    with (folder / DOCUMENTS).open("ab") as ends:
        for ids in _encode_documents(documents, tokenizer, count, ends, advance, eos=eos):
            while len(ids):
                number, place = divmod(written, shard_tokens)
                part, ids = ids[: shard_tokens - place], ids[shard_tokens - place :]
                path = folder / f"shard-{number:05d}.bin"
                with path.open("ab") as shard:
                    shard.write(part.astype(dtype).tobytes())
                changed.add(path)
                written += len(part)
            if count["batches"] % SAVED_BATCHES == 0:
                ends.flush()
                for path in changed:
                    flush_to_disk(path)
                changed = {folder / DOCUMENTS}
                write_atomically(folder / UNFINISHED, json.dumps(count))
    (folder / UNFINISHED).unlink(missing_ok=True)
    for path in folder.glob("shard-*.bin"):
        if path.stat().st_size == 0:  # of a process that was killed
            path.unlink()
    return count


def _shard_sizes(num_tokens: int, shard_tokens: int) -> dict[str, int]:
    """The tokens of each file of a store of ``num_tokens``; the last file may have fewer than the others."""
    starts = range(0, num_tokens, shard_tokens)
    return {f"shard-{number:05d}.bin": min(shard_tokens, num_tokens - start) for number, start in enumerate(starts)}


def _write_labels(documents: Iterable[Document], names: tuple[str, ...], path: Path) -> Iterator[Document]:
    """The same documents; the place of each label among the names is written to a file."""
    places = {name: place for place, name in enumerate(names)}
    with path.open("wb") as stream:
        for document in documents:
            label = document.require_label()
            if label not in places:
                raise ValueError(
                    f"the document {document.name} has the label {label!r}; allowed are {', '.join(names)}: "
                    "change it, or leave the document out"
                )
            stream.write(np.array([places[label]], dtype="<i4").tobytes())
            yield document
