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
from itertools import chain, islice
from os import PathLike
from pathlib import Path

import torch

from duality.files.atomic import atomic_file
from duality.tokenizers.specs import Numbers, TokenizerSpec
from duality.tokenizers.tokenizer import utf8

FILE = "corpus.jsonl"
ALLOWED = "an iterable of strings, an integer tensor of shape (N, L), or a sequence of 1-D integer tensors"


def write_corpus(
    data: Iterable[str] | torch.Tensor | Sequence[torch.Tensor], folder: Path
) -> tuple[Path, TokenizerSpec | None]:
    """Write each text, or each row of ids, as one document of a file; it, and the tokenizer if the data were ids."""
    if isinstance(data, torch.Tensor) and data.ndim != 2:
        raise ValueError(
            f"a tensor of ids must have the shape (N, L), one document per row; got {tuple(data.shape)}: "
            "for one document give ids.reshape(1, -1)"
        )
    if isinstance(data, (str, bytes, PathLike, Mapping)) or not isinstance(data, Iterable):
        raise ValueError(
            f"the data must be {ALLOWED}; got one {type(data).__name__}: give one text as [text]; a file or a named "
            "corpus needs no writing, give its path or its name as data.corpus of the recipe"
        )
    items: Iterator[object] = iter(data.cpu() if isinstance(data, torch.Tensor) else data)
    first = list(islice(items, 1))
    if not first:
        raise ValueError(f"the data are empty; give {ALLOWED}, with at least one item")
    path, largest, has_ids = folder / FILE, -1, isinstance(first[0], torch.Tensor)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        for number, item in enumerate(chain(first, items)):
            where = f"item {number} of the data"
            if has_ids:
                ids = _check_ids(item, where)
                largest = max(largest, max(ids, default=-1))
                text = " ".join(map(str, ids))
            elif isinstance(item, str):
                text = item
                try:
                    utf8(text)  # whole characters
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from None
            else:
                raise ValueError(
                    f"{where} is no string, its type is {type(item).__name__}; give {ALLOWED}: "
                    "take the text out of a record, and make a tensor of a list of ids"
                )
            stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        if has_ids and largest < 0:
            raise ValueError("the data have no ids, only tensors of length 0; give at least one id")
        tokenizer = Numbers(largest + 1) if has_ids else None  # refuses ids before the file is replaced
    return path, tokenizer


def _check_ids(item: object, where: str) -> list[int]:
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
