"""What every tokenizer is, and what they are made of: checked ids, and definitions whose checksum is the fingerprint.

What must hold: the same definition is the same text, whatever the order of its keys; ids outside the vocabulary and
half a surrogate pair are errors that name the place.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from duality.files.atomic import write_atomically

END_OF_DOCUMENT = "<|endoftext|>"
FILE = "tokenizer.json"

Ids = npt.NDArray[np.int64]


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def vocab_size(self) -> int:
        """K, the number of ids, including the separator if there is one."""

    @property
    def separator(self) -> int | None:
        """The id that ends a document; None if the tokenizer has none."""

    @property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer's file: equal only for equal tokenizers."""

    def encode(self, text: str) -> Ids:
        """The ids of a text, without a separator."""

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of a row of ids; the separator reads "<|endoftext|>"."""

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into the folder."""


def split_at(separator: int, row: Ids) -> list[Ids]:
    """The ids of the documents in a row, without the separators."""
    parts = np.split(row, np.flatnonzero(row == separator))
    return [part[part != separator] for part in parts]


def canonical(definition: dict[str, object]) -> str:
    """The definition as JSON, the same text for every order of its keys."""
    return json.dumps(definition, sort_keys=True, separators=(",", ":"))


def sha256(text: str) -> str:
    """The sha256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write_definition(folder: Path, definition: str) -> None:
    """Write tokenizer.json, which is then complete or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FILE, definition)


def utf8(text: str) -> bytes:
    """The bytes of a text; half a surrogate pair is an error."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        place = f"position {error.start}"
        raise ValueError(f"half a surrogate pair at {place} is no character; give Unicode text") from None


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The Unicode numbers of a text's characters."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32)


def checked_ids(ids: npt.ArrayLike, vocab_size: int) -> Ids:
    """The ids as one row of int64; anything but ids of the vocabulary is an error."""
    row = np.asarray(ids)
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise ValueError(f"decode takes one row of integers; got {row.dtype} of shape {row.shape}")
    outside = np.flatnonzero((row < 0) | (row >= vocab_size))
    if outside.size:
        place = int(outside[0])
        raise ValueError(f"id {row[place]} at position {place} is outside the vocabulary of {vocab_size} ids")
    return row.astype(np.int64)
