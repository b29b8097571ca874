"""Splitting a corpus into training and validation text, before it is tokenized.

    by document    the last documents, a fraction ``validation`` of their number, at least one
    by position    the last fraction of each document, so that every book is in both parts

By position, the cut is at the line end nearest to the exact place, else at the nearest space, if this leaves the
validation part between half and three halves of the requested size (and the border is within 4096 characters). Else
the cut is at the exact place, or at the nearer end of the number that the exact place lies in.

What must hold: the two parts together are the corpus, without overlap; they depend on the documents only; a part
of a document has its label; no number of up to 20 digits is cut in two, so that corpora of ids can be split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from duality.data.documents import Document
from duality.data.readers.text import DIGITS, LONGEST_NUMBER, Excerpt

MANY_DOCUMENTS = 100
FARTHEST_BORDER = 4096


@dataclass(frozen=True)
class _Split:
    """A rule that cuts a corpus of ``num_documents`` documents into two parts."""

    by: Literal["document", "position"]
    validation: float
    num_documents: int

    @property
    def num_training(self) -> int:
        """The number of documents for training, if the split is by document."""
        return self.num_documents - max(1, round(self.num_documents * self.validation))

    def select(self, documents: Iterable[Document], held_out: bool) -> Iterator[Document]:
        """The part for training, or the one held out; a document that is too short to be cut is not in the latter."""
        for number, document in enumerate(documents):
            if self.by == "document":
                if (number >= self.num_training) == held_out:
                    yield document
                continue
            cut, end = _cut_position(document, self.validation)
            if cut < end or not held_out:
                span = (cut, end) if held_out else (0, cut)
                yield replace(document, pieces=Excerpt(document.pieces, *span))


def check_split(by: str, validation: float) -> None:
    """Refuse a split that no corpus can have."""
    if by not in ("auto", "document", "position"):
        raise ValueError(f"a split is 'auto', 'document' or 'position'; got {by!r}")
    if not 0 < validation < 1:
        raise ValueError(f"the validation fraction must be between 0 and 1; got {validation}")


def choose_split(by: Literal["auto", "document", "position"], validation: float, num_documents: int) -> _Split:
    """The requested split; "auto" is by document if there are many."""
    check_split(by, validation)
    if by == "auto":
        by = "document" if num_documents >= MANY_DOCUMENTS else "position"
    split = _Split(by, validation, num_documents)
    if by == "document" and split.num_training < 1:
        raise ValueError(
            f"a split by document with validation {validation} leaves nothing to train on: the corpus has "
            f"{num_documents} document(s); use split='position', a smaller fraction or more documents"
        )
    return split


def _cut_position(document: Document, validation: float) -> tuple[int, int]:
    """Where the validation part of a document begins and ends, in characters."""
    end = sum(len(piece) for piece in document.pieces)
    exact = round(end * (1 - validation))
    reach = min(FARTHEST_BORDER, int(end * min(validation, 1 - validation) / 2))
    window = "".join(Excerpt(document.pieces, exact - reach, exact + reach))
    line_ends = [place + 1 for place, character in enumerate(window) if character == "\n"]
    spaces = [place for place, character in enumerate(window) if character == " "]
    if not (line_ends or spaces):
        return _move_outside_number(document, exact), end
    nearest = min(line_ends or spaces, key=lambda place: abs(place - reach))
    return exact - reach + nearest, end


def _move_outside_number(document: Document, cut: int) -> int:
    """The cut itself or, if it lies inside a number, the nearer end of the number."""
    before = "".join(Excerpt(document.pieces, cut - LONGEST_NUMBER, cut))
    after = "".join(Excerpt(document.pieces, cut, cut + LONGEST_NUMBER))
    digits_before = len(before) - len(before.rstrip(DIGITS))
    digits_after = len(after) - len(after.lstrip(DIGITS))
    if not (digits_before and digits_after) or digits_before + digits_after > LONGEST_NUMBER:
        return cut
    return cut - digits_before if digits_before <= digits_after else cut + digits_after
