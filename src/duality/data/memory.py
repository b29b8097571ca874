"""Data given from Python: texts or tensors of ids, written as a corpus file.

    write_corpus(["one text", "another"], folder)          one document per text
    write_corpus(torch.tensor([[3, 1], [0, 2]]), folder)   one document per row; the tokenizer is Numbers(4)
    write_corpus([tensor_a, tensor_b], folder)             one document per 1-D tensor; the lengths may differ

The result is ``folder/corpus.jsonl``, a corpus like every other (documents.py). Ids are written as numbers separated by
spaces, and the tokenizer ``Numbers(vocab_size=largest + 1)`` gives them back.

What must hold: the documents are the items, in order and unchanged; an iterable is read once and never held in memory
as a whole; the file is complete or absent, and an error leaves an earlier file as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import TextIO

import torch

from duality.files.atomic import atomic_file
from duality.tokenizers.specs import Numbers, TokenizerSpec
from duality.tokenizers.tokenizer import utf8

FILE = "corpus.jsonl"
ALLOWED = "an iterable of strings, an integer tensor of shape (N, L), or a sequence of 1-D integer tensors"


@dataclass(frozen=True)
class _WrittenCorpus:
    """A corpus file, and the tokenizer for it if the data were ids; None if they were texts."""

    path: Path
    tokenizer: TokenizerSpec | None


def write_corpus(data: Iterable[str] | torch.Tensor | Sequence[torch.Tensor], folder: Path) -> _WrittenCorpus:
    """Write each text, or each row of ids, as one document of ``folder/corpus.jsonl``."""
    items = _items_of(data)
    first = list(islice(items, 1))
    if not first:
        raise ValueError(f"the data are empty; give {ALLOWED}, with at least one item")
    path = folder / FILE
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        write = _write_ids if isinstance(first[0], torch.Tensor) else _write_texts
        tokenizer = write(chain(first, items), stream)
    return _WrittenCorpus(path, tokenizer)


def _items_of(data: object) -> Iterator[object]:
    """The documents to be: the rows of a tensor, or the items of an iterable."""
    if isinstance(data, torch.Tensor):
        if data.ndim != 2:
            raise ValueError(
                f"a tensor of ids must have the shape (N, L), one document per row; got {tuple(data.shape)}: "
                "for one document give ids.reshape(1, -1)"
            )
        return iter(data.cpu())
    if isinstance(data, (str, bytes, PathLike, Mapping)) or not isinstance(data, Iterable):
        raise ValueError(
            f"the data must be {ALLOWED}; got one {type(data).__name__}: give one text as [text]; a file or a named "
            "corpus needs no writing, give its path or its name as data.corpus of the recipe"
        )
    return iter(data)


def _write_texts(items: Iterable[object], stream: TextIO) -> None:
    """Write texts; the tokenizer is free."""
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise ValueError(
                f"item {number} of the data is no string, its type is {type(item).__name__}; give {ALLOWED}: "
                "take the text out of a record, and make a tensor of a list of ids"
            )
        try:
            utf8(item)
        except ValueError as error:
            raise ValueError(f"item {number} of the data: {error}") from None
        _write_document(stream, item)


def _write_ids(items: Iterable[object], stream: TextIO) -> Numbers:
    """Write ids as numbers; the result is their tokenizer."""
    largest = -1
    for number, item in enumerate(items):
        ids = _ids_of(item, f"item {number} of the data")
        largest = max(largest, max(ids, default=-1))
        _write_document(stream, " ".join(map(str, ids)))
    if largest < 0:
        raise ValueError("the data have no ids, only tensors of length 0; give at least one id")
    return Numbers(largest + 1)


def _ids_of(item: object, where: str) -> list[int]:
    """The ids of one document; anything but a 1-D tensor of non-negative integers is an error."""
    if not isinstance(item, torch.Tensor):
        raise ValueError(f"{where} is no tensor, its type is {type(item).__name__}; give {ALLOWED}")
    if item.dtype == torch.bool or item.is_floating_point() or item.is_complex():
        raise ValueError(f"{where} has the dtype {item.dtype}; ids are integers: convert it, for example with .long()")
    if item.ndim != 1:
        raise ValueError(f"{where} has the shape {tuple(item.shape)}; give 1-D tensors, or one tensor of shape (N, L)")
    ids: list[int] = item.tolist()
    if ids and min(ids) < 0:
        raise ValueError(
            f"{where} has the id {min(ids)}; ids are 0 or larger: remove ids that stand for padding, "
            "for example with row[row >= 0]"
        )
    return ids


def _write_document(stream: TextIO, text: str) -> None:
    """Write one line of a .jsonl file."""
    stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
