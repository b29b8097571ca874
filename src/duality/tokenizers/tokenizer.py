"""Tokenizers: text to integers 0 ... K-1 and back.

A specification (tokenizer_specs.py) says what to make; training it on text gives the tokenizer:

    Bytes()                           K = 257              the 256 bytes of UTF-8
    Characters()                      K = alphabet + 1     the characters of the training text
    BPE(vocab_size=2048)              K <= vocab_size      byte-level pairs: any text can be encoded
    Pretrained("gpt2")                K = 50 257           the same with published pairs
    Pretrained("bert-base-uncased")   K = 30 522           published word pieces, in lower case
    Numbers(vocab_size=256)           K = vocab_size + 1   "3 14 15": the text is the ids
    Text8()                           K = 27               a to z and the space; no separator
    Smiles()                          K = tokens + 1       the atoms, bonds and rings of the training molecules
    Nucleotides()                     K = 6                A, C, G, T, N
    TokenizerFile("tokenizer.json")   K = largest id + 1   any file of the library `tokenizers`
    HubTokenizer("owner/name")        K = largest id + 1   the same, from the Hugging Face hub

K counts the states that a model has to distinguish: the pieces of text and one id for the end of a document, the
``separator``, which is None for a tokenizer that has none. No id is added for padding or for the mask token, and none
of a published vocabulary is removed. Decoding shows the separator as "<|endoftext|>". The same characters inside a text
are ordinary text, never a separator.

What must hold: decode(encode(text)) = text for every text that can be encoded (Bytes, BPE: every text), with these
exceptions: word pieces lose capitals, accents, white space and rare characters, numbers lose leading zeros and the kind
of white space, nucleotides lose their case and what an ambiguous one may be, and a tokenizer.json loses what its
normalizer removes. The same text gives the same tokenizer; two fingerprints are equal exactly if the tokenizers are
equal.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import tokenizers

from duality.tokenizers.base import END_OF_DOCUMENT as END_OF_DOCUMENT  # these were defined here
from duality.tokenizers.base import FILE as FILE
from duality.tokenizers.base import Ids as Ids
from duality.tokenizers.base import Tokenizer as Tokenizer
from duality.tokenizers.base import canonical as canonical
from duality.tokenizers.base import checked_ids, code_points, sha256, split_at, write_definition
from duality.tokenizers.base import utf8 as utf8
from duality.tokenizers.fast_pairs import FastPairs, fast_pairs
from duality.tokenizers.library_json import LibraryTokenizer, library_ids, piece_id
from duality.tokenizers.symbols import NucleotideTokenizer, SmilesTokenizer, Text8Tokenizer

MOST_NUMBERS = (1 << 32) - 1  # with the separator, as many ids as a token store can hold
KINDS = ("bytes", "characters", "bpe", "wordpiece", "numbers", "text8", "smiles", "nucleotides", "library")


@dataclass(frozen=True)
class ByteTokenizer:
    """The bytes of UTF-8, and 256 for the end of a document."""

    vocab_size: ClassVar[int] = 257
    separator: ClassVar[int] = 256
    definition: ClassVar[str] = '{"kind":"bytes"}'
    fingerprint: ClassVar[str] = hashlib.sha256(definition.encode("utf-8")).hexdigest()

    def encode(self, text: str) -> Ids:
        """One id per byte."""
        return np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int64)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text; bytes that are not UTF-8 become the replacement character."""
        documents = split_at(self.separator, checked_ids(ids, self.vocab_size))
        return END_OF_DOCUMENT.join(part.astype(np.uint8).tobytes().decode("utf-8", "replace") for part in documents)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into the folder."""
        write_definition(Path(folder), self.definition)


@dataclass(frozen=True)
class CharTokenizer:
    """The characters of an alphabet, in order, and one more id for the end of a document."""

    alphabet: str

    def __post_init__(self) -> None:
        """Refuse an alphabet that is empty, out of order or has a character twice."""
        if not self.alphabet or list(self.alphabet) != sorted(set(self.alphabet)):
            raise ValueError(f"an alphabet must be sorted, without repeats and not empty; got {self.alphabet!r}")

    @property
    def vocab_size(self) -> int:
        """The alphabet and the separator."""
        return len(self.alphabet) + 1

    @property
    def separator(self) -> int:
        """The id after the last character."""
        return len(self.alphabet)

    @property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer's file."""
        return sha256(self.definition)

    @property
    def definition(self) -> str:
        """The text of tokenizer.json."""
        return canonical({"kind": "characters", "alphabet": self.alphabet})

    @cached_property
    def code_points(self) -> npt.NDArray[np.uint32]:
        """The alphabet as Unicode numbers, which are sorted too."""
        return code_points(self.alphabet)

    def encode(self, text: str) -> Ids:
        """One id per character; a character outside the alphabet is an error."""
        points = code_points(text)
        ids = np.searchsorted(self.code_points, points)
        unknown = np.flatnonzero(self.code_points[np.minimum(ids, len(self.alphabet) - 1)] != points)
        if unknown.size:
            first, others = int(unknown[0]), sorted({text[place] for place in unknown})
            raise ValueError(
                f"the character {text[first]!r} at position {first} is not among the {len(self.alphabet)} of "
                f"the training text; use the tokenizer Bytes or BPE, or Characters(extra={''.join(others)!r})"
            )
        return ids.astype(np.int64)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of a row of ids."""
        pieces = [*self.alphabet, END_OF_DOCUMENT]
        return "".join(pieces[index] for index in checked_ids(ids, self.vocab_size).tolist())

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into the folder."""
        write_definition(Path(folder), self.definition)


@dataclass(frozen=True)
class BPETokenizer:
    """Byte-level pair encoding by the library `tokenizers`."""

    definition: str = field(repr=False)  # about 60 000 characters

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The tokenizer of the library, made from the definition."""
        made = tokenizers.Tokenizer.from_str(json.dumps(json.loads(self.definition)["bpe"]))
        made.encode_special_tokens = True  # "<|endoftext|>" inside a text is text
        return made

    @cached_property
    def fast(self) -> FastPairs | None:
        """An encoder that gives the same ids sooner; making it takes about a second. None where there is none."""
        return fast_pairs(json.loads(self.definition)["bpe"], self.library)

    @cached_property
    def vocab_size(self) -> int:
        """The number of ids after training, which is smaller than requested if the text is small."""
        return self.library.get_vocab_size()

    @cached_property
    def separator(self) -> int:
        """The end of a document: id 0 if the pairs were trained by ``BPE``, 50 256 for GPT-2."""
        return piece_id(self.library, END_OF_DOCUMENT)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer's file."""
        return sha256(self.definition)

    def encode(self, text: str) -> Ids:
        """The ids of the longest merges."""
        return library_ids(self.library, text)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text; bytes that are not UTF-8 become the replacement character."""
        row = checked_ids(ids, self.vocab_size)
        return str(self.library.decode(row.tolist(), skip_special_tokens=False))

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into the folder."""
        write_definition(Path(folder), self.definition)


@dataclass(frozen=True)
class WordPieceTokenizer:
    """Word pieces by the library `tokenizers`, as in BERT: the longest piece first, "##" before the others.

    Decoding does not give the text back exactly. Control characters are removed, words are in lower case, without
    accents and one space apart; a word with an unknown character, or with more than 100 characters, is "[UNK]".
    """

    definition: str = field(repr=False)  # about 600 000 characters

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The tokenizer of the library, made from the definition."""
        return tokenizers.Tokenizer.from_str(json.dumps(json.loads(self.definition)["wordpiece"]))

    @cached_property
    def vocab_size(self) -> int:
        """All pieces of the published list, including those that no text contains."""
        return self.library.get_vocab_size()

    @cached_property
    def separator(self) -> int:
        """The end of a document: 102 for BERT. No text contains it, because "[" is a separate word."""
        return piece_id(self.library, "[SEP]")

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer's file."""
        return sha256(self.definition)

    def encode(self, text: str) -> Ids:
        """The ids of the longest pieces."""
        return library_ids(self.library, text)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The words, one space apart, punctuation marks without a space before them."""
        documents = split_at(self.separator, checked_ids(ids, self.vocab_size))
        parts = (self.library.decode(part.tolist(), skip_special_tokens=False) for part in documents)
        return END_OF_DOCUMENT.join(str(part) for part in parts)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into the folder."""
        write_definition(Path(folder), self.definition)


@dataclass(frozen=True)
class NumberTokenizer:
    """The whole numbers 0 ... num_values - 1, separated by white space, and one more id for the end of a document."""

    num_values: int

    def __post_init__(self) -> None:
        """Refuse a number of values that a token store cannot hold."""
        if not 1 <= self.num_values <= MOST_NUMBERS:
            raise ValueError(
                f"numbers as tokens need from 1 to {MOST_NUMBERS} values; got {self.num_values}: "
                "give the largest id + 1, or number the ids from 0 without gaps"
            )

    @property
    def vocab_size(self) -> int:
        """The numbers and the separator."""
        return self.num_values + 1

    @property
    def separator(self) -> int:
        """The id after the last number."""
        return self.num_values

    @property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer's file."""
        return sha256(self.definition)

    @property
    def definition(self) -> str:
        """The text of tokenizer.json."""
        return canonical({"kind": "numbers", "num_values": self.num_values})

    def encode(self, text: str) -> Ids:
        """One id per number; another word, or a number that is too large, is an error."""
        return np.array([self.value(word, place) for place, word in enumerate(text.split())], dtype=np.int64)

    def value(self, word: str, place: int) -> int:
        """The id that a word stands for."""
        problem, remedy = "is no number", "use another tokenizer, such as Bytes or BPE"
        if word.isascii() and word.isdigit():
            digits = word.lstrip("0") or "0"
            # The length comes first: Python does not read very long numbers.
            if len(digits) <= len(str(MOST_NUMBERS)) and int(digits) < self.num_values:
                return int(digits)
            problem, remedy = "is too large", "raise the vocab_size of Numbers"
        shown = word if len(word) <= 24 else word[:20] + "..."
        raise ValueError(
            f"the word {shown!r} at position {place} {problem}; the tokens are whole numbers from 0 to "
            f"{self.num_values - 1}, separated by white space: change the text, or {remedy}"
        )

    def decode(self, ids: npt.ArrayLike) -> str:
        """The numbers, one space apart."""
        documents = split_at(self.separator, checked_ids(ids, self.vocab_size))
        return END_OF_DOCUMENT.join(" ".join(map(str, part.tolist())) for part in documents)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into the folder."""
        write_definition(Path(folder), self.definition)


def text_before_end(tokenizer: Tokenizer, ids: npt.ArrayLike, start: int = 0) -> str:
    """The text of a row of ids up to its first separator, which is looked for from place ``start`` on.

    It is all of the row if the tokenizer has no separator.
    """
    row = checked_ids(ids, tokenizer.vocab_size)
    if tokenizer.separator is None:
        return tokenizer.decode(row)
    ends = np.flatnonzero(row[start:] == tokenizer.separator)
    return tokenizer.decode(row[: start + int(ends[0])] if len(ends) else row)


def load_tokenizer(folder: str | Path, name: str = FILE) -> Tokenizer:
    """The tokenizer saved in a folder, in the file ``name``."""
    path = Path(folder) / name
    if not path.is_file():
        raise ValueError(f"no tokenizer at {path}; give a folder that a tokenizer was saved in")
    try:
        definition = json.loads(path.read_text(encoding="utf-8"))
        kind = definition["kind"]
        if kind == "bytes":
            return ByteTokenizer()
        if kind == "characters":
            return CharTokenizer(definition["alphabet"])
        if kind == "bpe":
            return BPETokenizer(canonical({"kind": kind, "bpe": definition["bpe"]}))
        if kind == "wordpiece":
            return WordPieceTokenizer(canonical({"kind": kind, "wordpiece": definition["wordpiece"]}))
        if kind == "numbers":
            return NumberTokenizer(definition["num_values"])
        if kind == "text8":
            return Text8Tokenizer()
        if kind == "smiles":
            return SmilesTokenizer(tuple(definition["tokens"]))
        if kind == "nucleotides":
            return NucleotideTokenizer()
        if kind == "library":
            content = {"library": definition["library"], "separator": definition["separator"]}
            return LibraryTokenizer(canonical({"kind": kind, **content}))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); save the tokenizer again") from None
    raise ValueError(f"{path} has the unknown kind {kind!r}; known are {', '.join(KINDS)}")
