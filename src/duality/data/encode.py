"""Encoding: the documents of a corpus become blocks of ids, many parts of text at a time.

    documents --cut at borders--> parts of text --encode a batch in parallel, + separator--> blocks of ids

The tokenizers of the library (BPE, word pieces, any tokenizer.json) encode the parts of a batch in parallel, in as many
threads as there are cores (or RAYON_NUM_THREADS); BPE is encoded by `tiktoken` if it is installed and there is much
text, with the same ids (fast_pairs.py). For BPE and word pieces a long text is first cut at borders that no token
crosses. Another tokenizer.json may treat the beginning of a text in its own way, so for it the pieces of
a document are joined, up to 16 million characters. Every other tokenizer is given the pieces of a document one by one,
as they are.

What must hold: the ids are those of the documents in order, each document followed by the separator, if ``eos`` is
true; they depend neither on the size of parts and batches nor on the number of threads; an error names the document and
the character.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from duality.files.progress import Advance, unseen
from duality.tokenizers.library import LibraryTokenizer
from duality.tokenizers.tokenizer import Ids, Tokenizer, utf8

if TYPE_CHECKING:
    from duality.data.documents import Document

PART_CHARACTERS = 1 << 16
BATCH_CHARACTERS = 1 << 21
JOINED_CHARACTERS = 1 << 24
FAST_CHARACTERS = 1 << 20
_AHEAD = 2  # batches
BORDER = re.compile(r"(?<=\S)(?=[ \n])")

S = TypeVar("S")
T = TypeVar("T")


@dataclass
class Count:
    """The numbers of what has been encoded so far."""

    tokens: int = 0
    documents: int = 0
    characters: int = 0
    bytes: int = 0
    batches: int = 0
    """of the texts that were encoded together"""


@dataclass(frozen=True)
class _Part:
    """A part of the text of a document, which begins at character ``start`` of it; None is the document's end."""

    document: str
    start: int
    text: str | None


def encode_documents(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    count: Count,
    ends: IO[bytes],
    advance: Advance = unseen,
    *,
    eos: bool = True,
) -> Iterator[Ids]:
    """The ids of all documents in blocks; they are counted, and the end of each document is written to ``ends``.

    Without ``eos`` no separator follows a document. The batches that ``count`` has already are read and not encoded
    again. ``advance`` is called with the bytes and the tokens of each block.
    """
    if eos and tokenizer.separator is None:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} ids and none to end a document with: set data.eos=false, or use "
            "a tokenizer that has one, such as Characters or BPE"
        )
    separator = np.array([tokenizer.separator] if eos else [], dtype=np.int64)
    size = PART_CHARACTERS if isinstance(tokenizer, LibraryTokenizer) and tokenizer.cuttable else None
    if isinstance(tokenizer, LibraryTokenizer) and not tokenizer.cuttable:
        documents = (replace(document, pieces=_join_pieces(document.pieces)) for document in documents)
    todo = islice(_group(_parts_of(documents, size), _length_of, BATCH_CHARACTERS), count.batches, None)
    for batch, rows in _work_ahead(todo, partial(_encode_batch, tokenizer=tokenizer)):
        blocks = [separator if part.text is None else next(rows) for part in batch]
        is_end = np.array([part.text is None for part in batch])
        after = count.tokens + np.cumsum([len(block) for block in blocks])
        ends.write(after[is_end].astype("<i8").tobytes())
        texts = [part.text for part in batch if part.text is not None]
        num_bytes = sum(num_bytes_of(text) for text in texts)
        ids = np.concatenate(blocks)
        count.tokens += len(ids)
        count.documents += int(is_end.sum())
        count.characters += sum(map(len, texts))
        count.bytes += num_bytes
        count.batches += 1
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


def _parts_of(documents: Iterable[Document], size: int | None) -> Iterator[_Part]:
    """The parts of all documents and their ends; pieces longer than ``size`` characters are cut where they can be."""
    for document in documents:
        start = 0
        for piece in document.pieces:
            for text in (piece,) if size is None else cut_at_borders(piece, size):
                yield _Part(document.name, start, text)
                start += len(text)
        yield _Part(document.name, start, None)


def _join_pieces(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in few pieces: all of it, or at least ``JOINED_CHARACTERS`` in each piece but the last."""
    return map("".join, _group(pieces, len, JOINED_CHARACTERS))


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
    held: list[S] = []
    size = 0
    for item in items:
        held.append(item)
        size += length_of(item)
        if size >= least:
            yield held
            held, size = [], 0
    if held:
        yield held


def _length_of(part: _Part) -> int:
    """The characters of a part; the end of a document counts as one."""
    return len(part.text or " ")


def _encode_batch(batch: Sequence[_Part], tokenizer: Tokenizer) -> Iterator[Ids]:
    """The ids of each part of a batch that has text; an error names its place in the corpus."""
    parts = [part for part in batch if part.text is not None]
    texts = [part.text or "" for part in parts]
    if isinstance(tokenizer, LibraryTokenizer):
        _apply(utf8, parts, texts)  # half a surrogate pair is an error
        rows = _apply(tokenizer.check_text_ids, parts, _library_rows(tokenizer, texts))
    else:
        rows = _apply(tokenizer.encode, parts, texts)
    for part, ids in zip(parts, rows):
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size:
            problem = f"the tokenizer gave an id outside its vocabulary of {tokenizer.vocab_size}"
            raise ValueError(f"{part.document}, after character {part.start}: {problem}")
    return iter(rows)


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
