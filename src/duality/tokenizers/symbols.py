"""Tokenizers of fixed symbols: the 27 of text8, nucleotides, the tokens of SMILES.

What must hold: a text with anything else is an error that names the place and says what to do; decode(encode(text)) =
text, but nucleotides lose their case and what an ambiguous one may be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from duality.tokenizers.tokenizer import Ids, LetterTokenizer, SymbolTokenizer, canonical

_AMBIGUOUS = "RYSWKMBDHV"  # IUPAC codes of two or three possible nucleotides

# The tokens of SMILES (Schwaller et al. 2018): an atom in brackets, an atom of the organic subset, a branch, a bond, a
# ring of one digit or of two, the marks of reactions.
_TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOSPFI]|[bcnosp]|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]")


@dataclass(frozen=True)
class Text8Tokenizer(LetterTokenizer):
    """The 27 symbols of the benchmark text8: 0 ... 25 for a ... z, 26 for the space.

    There is no separator: text8 is one document, and an id that no text has is a noise state of a uniform process.
    """

    definition: ClassVar[str] = '{"kind":"text8"}'
    has_separator: ClassVar[bool] = False
    symbols = "abcdefghijklmnopqrstuvwxyz "

    def problem(self, character: str, unknown: Sequence[str]) -> str:
        """How the benchmark changes a text, which its user has to do."""
        return (
            "is not one of the 27 of text8, a to z and the space: change the text (lower case, digits spelled out, one "
            "space for anything else), or use the tokenizer Characters or Bytes"
        )


@dataclass(frozen=True)
class NucleotideTokenizer(LetterTokenizer):
    """Nucleotides of DNA: 0 ... 4 for A, C, G, T and N, and 5 for the end of a document.

    Lower case, which marks repeats in genomes ("soft-masked"), is read as upper case: where the repeats are is lost.
    The IUPAC codes R, Y, S, W, K, M, B, D, H and V, which stand for two or three possible nucleotides, are read as N:
    which ones were possible is lost. U (RNA), gaps and line ends are errors.
    """

    definition: ClassVar[str] = '{"kind":"nucleotides"}'
    symbols = "ACGTN"
    aliases: ClassVar[Mapping[str, str]] = {
        **{letter: letter.lower() for letter in "ACGT"},
        "N": "n" + _AMBIGUOUS + _AMBIGUOUS.lower(),
    }

    def problem(self, character: str, unknown: Sequence[str]) -> str:
        """The letters that are read, and what to do about line ends and RNA."""
        remedy = "use the tokenizer Characters or Bytes"
        if character.isspace():
            remedy = "put each sequence on one line and set data.documents=lines"
        elif character in "Uu":
            remedy = "write T for U"
        return (
            f"is no nucleotide; allowed are A, C, G, T, N and the ambiguous {', '.join(_AMBIGUOUS)}, which are read as "
            f"N: change the text, or {remedy}"
        )


@dataclass(frozen=True)
class SmilesTokenizer(SymbolTokenizer):
    """The tokens of SMILES, in order, and one more id for the end of a document."""

    tokens: tuple[str, ...]
    pattern: ClassVar[str] = _TOKEN.pattern

    def __post_init__(self) -> None:
        """Refuse tokens that are out of order, twice there or no tokens of SMILES."""
        if not self.tokens or list(self.tokens) != sorted(set(self.tokens)):
            raise ValueError(f"tokens must be sorted, without repeats and not empty; got {self.tokens!r}")
        for token in self.tokens:
            if _TOKEN.fullmatch(token) is None or split_smiles(token) != [token]:
                raise ValueError(f"{token!r} is no token of SMILES, such as 'C', 'Cl', '[nH]', '=', '(' or '%10'")

    @property
    def symbols(self) -> tuple[str, ...]:
        """The tokens."""
        return self.tokens

    @property
    def definition(self) -> str:
        """The text of tokenizer.json."""
        return canonical({"kind": "smiles", "tokens": list(self.tokens)})

    @cached_property
    def _places(self) -> dict[str, int]:
        """The id of each token."""
        return {token: index for index, token in enumerate(self.tokens)}

    def encode(self, text: str) -> Ids:
        """One id per token; a token that is not in the vocabulary is an error."""
        found = split_smiles(text)
        ids = [self._places.get(token, -1) for token in found]
        if -1 in ids:
            first = ids.index(-1)
            others = sorted({token for token, index in zip(found, ids) if index < 0})
            raise ValueError(
                f"the token {found[first]!r} at position {sum(map(len, found[:first]))} is not among the "
                f"{len(self.tokens)} of the training text; use Smiles(extra={''.join(others)!r}), or the tokenizer "
                "Characters or Bytes"
            )
        return np.array(ids, dtype=np.int64)


def split_smiles(text: str) -> list[str]:
    """The tokens of a SMILES; a character that is no part of any is an error.

    >>> split_smiles("C[C@H](Br)Cl.c1ccccc1%10")
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
