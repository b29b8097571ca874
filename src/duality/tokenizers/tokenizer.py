"""Tokenizers: text to integers 0 ... K-1 and back.

K counts the states that a model has to distinguish: the pieces of text and one id for the end of a document, the
``separator``, which is None for a tokenizer that has none. No id is added for padding or for the mask token, and none
of a published vocabulary is removed. Decoding shows the separator as "<|endoftext|>". The same characters inside a text
are ordinary text, never a separator.

What must hold: decode(encode(text)) = text for every text that can be encoded (Bytes, BPE: every text), with these
exceptions: word pieces lose capitals, accents, white space and rare characters, numbers lose leading zeros and the kind
of white space, nucleotides lose their case and what an ambiguous one may be, and a tokenizer.json loses what its
normalizer removes. The same text gives the same tokenizer; two fingerprints are equal exactly if the tokenizers are
equal. Ids outside the vocabulary, half a surrogate pair and symbols that a tokenizer does not have are errors that name
the place and say what to do.

This module has the tokenizers of bytes, numbers, characters and other symbols; library.py has those of the library
`tokenizers`. A specification (specs.py) says which of them a recipe uses.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass
from functools import cached_property
from pathlib import Path
from string import whitespace
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from duality.files.atomic import write_atomically

END_OF_DOCUMENT = "<|endoftext|>"
FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
MOST_NUMBERS = (1 << 32) - 1  # with the separator, as many ids as a token store can hold

Ids = npt.NDArray[np.int64]

_AMBIGUOUS = "RYSWKMBDHV"  # IUPAC codes of two or three possible nucleotides

# The tokens of SMILES (Schwaller et al. 2018): an atom in brackets, an atom of the organic subset, a branch, a bond, a
# ring of one digit or of two, the marks of reactions.
_TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOSPFI]|[bcnosp]|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]")


class Tokenizer(Protocol):
    """Text to ids and back. It is saved as its ``definition``, the text of its file: its kind and its fields."""

    kind: str
    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    @property
    def vocab_size(self) -> int:
        """K, the number of ids, including the separator if there is one."""

    @property
    def separator(self) -> int | None:
        """The id that ends a document, the last one if nothing else is said; None if the tokenizer has none."""
        return self.vocab_size - 1

    def encode(self, text: str) -> Ids:
        """The ids of a text, without a separator."""

    def read(self, ids: Ids) -> str:
        """The text of ids of the vocabulary, none of which is the separator."""

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of a row of ids; the separator reads "<|endoftext|>"."""
        row = _check_ids(ids, self.vocab_size)
        if self.separator is None:
            return self.read(row)
        parts = np.split(row, np.flatnonzero(row == self.separator))
        return END_OF_DOCUMENT.join(self.read(part[part != self.separator]) for part in parts)

    @cached_property
    def definition(self) -> str:
        """The text of tokenizer.json."""
        return canonical({"kind": self.kind, **asdict(self)})

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer's file: equal only for equal tokenizers."""
        return hashlib.sha256(self.definition.encode("utf-8")).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into the folder: it is then complete or absent."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_atomically(Path(folder) / FILE, self.definition)


def canonical(definition: dict[str, object]) -> str:
    """The definition as JSON, the same text for every order of its keys."""
    return json.dumps(definition, sort_keys=True, separators=(",", ":"))


def utf8(text: str) -> bytes:
    """The bytes of a text; half a surrogate pair is an error."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        place = f"position {error.start}"
        raise ValueError(f"half a surrogate pair at {place} is no character; give Unicode text") from None


def _check_ids(ids: npt.ArrayLike, vocab_size: int) -> Ids:
    """The ids as one row of int64; anything but ids of the vocabulary is an error."""
    row = np.asarray(ids)
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise ValueError(f"decode takes one row of integers; got {row.dtype} of shape {row.shape}")
    outside = np.flatnonzero((row < 0) | (row >= vocab_size))
    if outside.size:
        place = int(outside[0])
        raise ValueError(f"id {row[place]} at position {place} is outside the vocabulary of {vocab_size} ids")
    return row.astype(np.int64)


def text_before_end(tokenizer: Tokenizer, ids: npt.ArrayLike, start: int = 0) -> str:
    """The text of a row of ids up to its first separator, which is looked for from place ``start`` on.

    It is all of the row if the tokenizer has no separator.
    """
    row = _check_ids(ids, tokenizer.vocab_size)
    ends = np.flatnonzero(row[start:] == tokenizer.separator)
    return tokenizer.decode(row[: start + int(ends[0])] if len(ends) else row)


@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8, and 256 for the end of a document; bytes that are not UTF-8 read as U+FFFD."""

    kind = "bytes"
    vocab_size = 257
    separator = 256

    def encode(self, text: str) -> Ids:
        """One id per byte."""
        return np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int64)

    def read(self, ids: Ids) -> str:
        return ids.astype(np.uint8).tobytes().decode("utf-8", "replace")


@dataclass(frozen=True)
class NumberTokenizer(Tokenizer):
    """The whole numbers 0 ... num_values - 1, separated by white space, and one more id for the end of a document."""

    num_values: int
    kind = "numbers"

    def __post_init__(self) -> None:
        """Refuse a number of values that a token store cannot hold."""
        if not 1 <= self.num_values <= MOST_NUMBERS:
            raise ValueError(
                f"numbers as tokens need from 1 to {MOST_NUMBERS} values; got {self.num_values}: "
                "give the largest id + 1, or number the ids from 0 without gaps"
            )

    @property
    def vocab_size(self) -> int:
        return self.num_values + 1

    def encode(self, text: str) -> Ids:
        """One id per number; another word, or a number that is too large, is an error."""
        ids = []
        for place, word in enumerate(text.split()):
            is_number, digits = word.isascii() and word.isdigit(), word.lstrip("0") or "0"
            # The length comes first: Python does not read very long numbers.
            if not is_number or len(digits) > len(str(MOST_NUMBERS)) or int(digits) >= self.num_values:
                problem, remedy = "is no number", "use another tokenizer, such as Bytes or BPE"
                if is_number:
                    problem, remedy = "is too large", "raise the vocab_size of Numbers"
                shown = word if len(word) <= 24 else word[:20] + "..."
                raise ValueError(
                    f"the word {shown!r} at position {place} {problem}; the tokens are whole numbers from 0 to "
                    f"{self.num_values - 1}, separated by white space: change the text, or {remedy}"
                )
            ids.append(int(digits))
        return np.array(ids, dtype=np.int64)

    def read(self, ids: Ids) -> str:
        """The numbers, one space apart."""
        return " ".join(map(str, ids.tolist()))


class SymbolTokenizer(Tokenizer):
    """Symbols that follow each other without a space: 0, 1, ..., and one more id for the end of a document.

    ``pattern`` finds one symbol in a text, ``aliases`` are other characters that are read as a symbol. Without
    ``has_separator`` no id ends a document. Symbols of one character each are found in a table of all characters.
    ``problem`` is what is wrong with a symbol that has no id, and ``remedies`` what to do about some of them.
    """

    noun = "character"
    pattern = r"[\s\S]"
    problem: ClassVar[str]
    remedies: ClassVar[Mapping[str, str]] = {}
    aliases: ClassVar[Mapping[str, str]] = {}
    has_separator = True

    @property
    def symbols(self) -> Sequence[str]:
        """The symbols in the order of their ids."""
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        return len(self.symbols) + self.has_separator

    @property
    def separator(self) -> int | None:
        return len(self.symbols) if self.has_separator else None

    @staticmethod
    def split(text: str) -> Sequence[str]:
        """The symbols of a text: its characters, if the tokenizer has no other."""
        return text

    @cached_property
    def _ids(self) -> dict[str, int]:
        """The id of each symbol and of each alias."""
        ids = {symbol: index for index, symbol in enumerate(self.symbols)}
        return ids | {character: ids[symbol] for symbol, group in self.aliases.items() for character in group}

    @cached_property
    def _table(self) -> npt.NDArray[np.int64]:
        """The id of each Unicode number up to the largest that has one, -1 without one; the last is for all others."""
        points = code_points("".join(self._ids))
        table = np.full(int(points.max()) + 2, -1, dtype=np.int64)
        table[points] = list(self._ids.values())
        return table

    def encode(self, text: str) -> Ids:
        """One id per symbol; a symbol without an id is an error."""
        found = self.split(text)
        if isinstance(found, str):
            ids = self._table.take(code_points(found), mode="clip")
        else:
            ids = np.array([self._ids.get(symbol, -1) for symbol in found], dtype=np.int64)
        if wrong := np.flatnonzero(ids < 0).tolist():
            symbol, unknown = found[wrong[0]], "".join(sorted({found[place] for place in wrong}))
            remedy = self.remedies.get(symbol, "use the tokenizer Characters or Bytes")
            problem = self.problem.format(count=len(self.symbols), unknown=unknown, remedy=remedy)
            place = sum(map(len, found[: wrong[0]]))
            raise ValueError(f"the {self.noun} {symbol!r} at position {place} {problem}")
        return ids

    def read(self, ids: Ids) -> str:
        return "".join(map(list(self.symbols).__getitem__, ids.tolist()))


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The Unicode numbers of a text's characters."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32)


@dataclass(frozen=True)
class CharTokenizer(SymbolTokenizer):
    """The characters of an alphabet, in order, and one more id for the end of a document."""

    alphabet: str
    kind = "characters"
    problem = (
        "is not among the {count} of the training text; use the tokenizer Bytes or BPE, or "
        "Characters(extra={unknown!r})"
    )

    def __post_init__(self) -> None:
        """Refuse an alphabet that is empty, out of order or has a character twice."""
        if not self.alphabet or list(self.alphabet) != sorted(set(self.alphabet)):
            raise ValueError(f"an alphabet must be sorted, without repeats and not empty; got {self.alphabet!r}")

    @property
    def symbols(self) -> str:
        return self.alphabet


@dataclass(frozen=True)
class Text8Tokenizer(SymbolTokenizer):
    """The 27 symbols of the benchmark text8: 0 ... 25 for a ... z, 26 for the space.

    There is no separator: text8 is one document, and an id that no text has is a noise state of a uniform process.
    """

    kind = "text8"
    symbols = "abcdefghijklmnopqrstuvwxyz "
    has_separator = False
    problem = (
        "is not one of the 27 of text8, a to z and the space: change the text (lower case, digits spelled out, one "
        "space for anything else), or {remedy}"
    )


@dataclass(frozen=True)
class NucleotideTokenizer(SymbolTokenizer):
    """Nucleotides of DNA: 0 ... 4 for A, C, G, T and N, and 5 for the end of a document.

    Lower case, which marks repeats in genomes ("soft-masked"), is read as upper case: where the repeats are is lost.
    The IUPAC codes R, Y, S, W, K, M, B, D, H and V, which stand for two or three possible nucleotides, are read as N:
    which ones were possible is lost. U (RNA), gaps and line ends are errors.
    """

    kind = "nucleotides"
    symbols = "ACGTN"
    aliases: ClassVar[Mapping[str, str]] = {
        **{letter: letter.lower() for letter in "ACGT"},
        "N": "n" + _AMBIGUOUS + _AMBIGUOUS.lower(),
    }
    problem = (
        f"is no nucleotide; allowed are A, C, G, T, N and the ambiguous {', '.join(_AMBIGUOUS)}, which are read as N: "
        "change the text, or {remedy}"
    )
    remedies: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys("Uu", "write T for U"),
        **dict.fromkeys(whitespace, "put each sequence on one line and set data.documents=lines"),
    }


@dataclass(frozen=True)
class SmilesTokenizer(SymbolTokenizer):
    """The tokens of SMILES, in order, and one more id for the end of a document."""

    tokens: tuple[str, ...]
    kind = "smiles"
    noun = "token"
    problem = "is not among the {count} of the training text; {remedy}, or Smiles(extra={unknown!r})"
    pattern = _TOKEN.pattern

    def __post_init__(self) -> None:
        """Refuse tokens that are out of order, twice there or no tokens of SMILES."""
        if not self.tokens or list(self.tokens) != sorted(set(self.tokens)):
            raise ValueError(f"tokens must be sorted, without repeats and not empty; got {self.tokens!r}")
        for token in self.tokens:
            if _TOKEN.fullmatch(token) is None or self.split(token) != [token]:
                raise ValueError(f"{token!r} is no token of SMILES, such as 'C', 'Cl', '[nH]', '=', '(' or '%10'")

    @property
    def symbols(self) -> tuple[str, ...]:
        return self.tokens

    @staticmethod
    def split(text: str) -> list[str]:
        """The tokens of a SMILES; a character that is no part of any is an error.

        >>> SmilesTokenizer.split("C[C@H](Br)Cl.c1ccccc1%10")
        ['C', '[C@H]', '(', 'Br', ')', 'Cl', '.', 'c', '1', 'c', 'c', 'c', 'c', 'c', '1', '%10']
        """
        found = _TOKEN.findall(text)
        if sum(map(len, found)) == len(text):
            return found
        place = 0
        while match := _TOKEN.match(text, place):
            place = match.end()
        remedy = "give one SMILES a document, or use the tokenizer Characters or Bytes"
        if text[place].isspace():
            remedy = "put each molecule on one line and set data.documents=lines"
        raise ValueError(f"the character {text[place]!r} at position {place} is no part of a SMILES; {remedy}")
