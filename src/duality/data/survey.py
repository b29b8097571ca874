"""A corpus before it is tokenized: what is in it, its parts for training and validation, the sample for BPE.

A survey says how much text there is, of which kind, its checksum and its first texts. The parts are split by one of:

    by document    the last documents, a fraction ``validation`` of their number, at least one
    by position    the last fraction of each document, so that every book is in both parts

By position, the cut is at the line end nearest to the exact place, else at the nearest space, if this leaves the
validation part between half and three halves of the requested size (and the border is within 4096 characters). Else
the cut is at the exact place, or at the nearer end of the number that the exact place lies in.

The sample that BPE is trained on:

    all text up to 128 MB; of more, 128 MB that are evenly spread
    of text without spaces (words of more than 256 characters: DNA, Chinese without punctuation) at most 8 MB

What must hold: a survey reads a corpus once and in order; the sample is the same each time; a corpus within both bounds
is its own sample, unchanged. The two parts together are the corpus, without overlap; they depend on the documents only;
a part of a document has its label; no number of up to 20 digits is cut in two, so that corpora of ids can be split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from duality.data import TEXT_COLUMN
from duality.data.documents import CorpusSpec, Document, list_skipped, locate, read_documents
from duality.data.encode import PART_CHARACTERS, cut_at_borders, num_bytes_of
from duality.data.readers import DIGITS, LONGEST_NUMBER, Repeatable, excerpt
from duality.files import DocumentRule
from duality.files.progress import Reporter, silent
from duality.tokenizers.library import LONGEST_WORD

# The pairs of BPE are trained on at most so much text, which is more than any named corpus has, and on at most so much
# without spaces, in which every word is a new one: a megabyte of it takes two seconds.
SAMPLE_BYTES = 128_000_000
UNBROKEN_BYTES = 8_000_000

NUM_EXAMPLES, EXAMPLE_CHARACTERS = 3, 400
MANY_DOCUMENTS = 100
FARTHEST_BORDER = 4096

_BORDER = b"\xff"  # no byte of UTF-8: two documents are never the same bytes as one


@dataclass(frozen=True)
class CorpusSize:
    """How much there is in a corpus; the names of all its labels, sorted, if they are requested; its checksum."""

    num_documents: int
    num_characters: int
    num_bytes: int
    num_unbroken: int
    """of the bytes, those in words of more than 256 characters"""
    label_names: tuple[str, ...]
    sha256: str
    """of the texts in their order, with their labels if they are requested; names of files do not count"""

    @property
    def sample_shares(self) -> tuple[float, float]:
        """The shares of all text, and of text without spaces, that BPE is trained on."""
        share = min(1.0, SAMPLE_BYTES / max(1, self.num_bytes))
        return share, min(share, UNBROKEN_BYTES / max(1, self.num_unbroken))

    @property
    def sample_bytes(self) -> int:
        """The bytes that BPE is trained on: all, if there are not many."""
        share, unbroken = self.sample_shares
        return round(share * (self.num_bytes - self.num_unbroken) + unbroken * self.num_unbroken)

    def sample(self, texts: Iterable[str]) -> Iterator[str]:
        """A share of the texts, and another one of unbroken text, evenly spread over them and the same each time."""
        shares, seen, taken = self.sample_shares, [0, 0], [0, 0]
        for text in texts:
            for part in cut_at_borders(text, PART_CHARACTERS):
                kind = int(sum(map(len, _find_unbroken_words(part))) > len(part) / 2)
                if taken[kind] <= shares[kind] * seen[kind]:
                    taken[kind] += len(part)
                    yield part
                seen[kind] += len(part)

    @staticmethod
    def join(each: Sequence[CorpusSize]) -> CorpusSize:
        """The size of several corpora; the checksum is that of theirs."""
        if len(each) == 1:
            return each[0]
        names = ("num_documents", "num_characters", "num_bytes", "num_unbroken")
        labels = sorted({label for size in each for label in size.label_names})
        digest = hashlib.sha256("\n".join(size.sha256 for size in each).encode()).hexdigest()
        sums = {name: sum(getattr(size, name) for size in each) for name in names}
        return replace(each[0], **sums, label_names=tuple(labels), sha256=digest)


def survey(documents: Iterable[Document], labels: bool) -> CorpusSize:
    """Count what is in the documents, which are read once."""
    num_documents, num_characters, num_bytes, num_unbroken, names = 0, 0, 0, 0, set()
    digest = hashlib.sha256()
    for document in documents:
        num_documents += 1
        if labels:
            names.add(document.require_label())
            digest.update(document.require_label().encode("utf-8") + _BORDER)
        for piece in document.pieces:
            data = piece.encode("utf-8")
            digest.update(data)
            num_characters += len(piece)
            num_bytes += len(data)
            num_unbroken += sum(map(num_bytes_of, _find_unbroken_words(piece)))
        digest.update(_BORDER)
    counts = (num_documents, num_characters, num_bytes, num_unbroken)
    return CorpusSize(*counts, tuple(sorted(names)), digest.hexdigest())


@dataclass(frozen=True)
class _Inspection:
    """What a corpus is, found by reading it: its files, those of its folders that are not read, its size, examples."""

    files: tuple[str, ...]
    skipped: tuple[str, ...]
    size: CorpusSize
    examples: tuple[str, ...]


def inspect(
    spec: CorpusSpec,
    documents: DocumentRule = "auto",
    column: str = TEXT_COLUMN,
    *,
    cache: Path | None = None,
    progress: Reporter = silent,
) -> _Inspection:
    """Read a corpus and count what is in it; the examples are the beginnings of its first documents."""
    first = islice(read_documents(spec, documents, column, cache=cache, progress=progress), NUM_EXAMPLES)
    examples = tuple("".join(excerpt(document.pieces, 0, EXAMPLE_CHARACTERS)) for document in first)
    size = survey(read_documents(spec, documents, column, cache=cache), labels=False)
    files = (file.name for place in locate(spec) for file in place.files(cache=cache))
    return _Inspection(tuple(files), tuple(list_skipped(spec)), size, examples)


def _find_unbroken_words(text: str) -> list[str]:
    """The words that are so long that BPE cuts them for training."""
    return [word for word in text.split() if len(word) > LONGEST_WORD]


@dataclass(frozen=True)
class Split:
    """A rule that cuts a corpus of ``num_documents`` documents into two parts."""

    by: Literal["document", "position"]
    validation: float
    num_documents: int

    @staticmethod
    def check(by: str, validation: float) -> None:
        """Refuse a split that no corpus can have."""
        if by not in ("auto", "document", "position"):
            raise ValueError(f"a split is 'auto', 'document' or 'position'; got {by!r}")
        if not 0 < validation < 1:
            raise ValueError(f"the validation fraction must be between 0 and 1; got {validation}")

    @classmethod
    def choose(cls, by: Literal["auto", "document", "position"], validation: float, num_documents: int) -> Split:
        """The requested split; "auto" is by document if there are many."""
        cls.check(by, validation)
        if by == "auto":
            by = "document" if num_documents >= MANY_DOCUMENTS else "position"
        split = cls(by, validation, num_documents)
        if by == "document" and split.num_training < 1:
            raise ValueError(
                f"a split by document with validation {validation} leaves nothing to train on: the corpus has "
                f"{num_documents} document(s); use split='position', a smaller fraction or more documents"
            )
        return split

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
                yield replace(document, pieces=Repeatable(partial(excerpt, document.pieces, *span)))


def _cut_position(document: Document, validation: float) -> tuple[int, int]:
    """Where the validation part of a document begins and ends, in characters."""
    end = sum(len(piece) for piece in document.pieces)
    exact = round(end * (1 - validation))
    reach = min(FARTHEST_BORDER, int(end * min(validation, 1 - validation) / 2))
    window = "".join(excerpt(document.pieces, exact - reach, exact + reach))
    line_ends = [place + 1 for place, character in enumerate(window) if character == "\n"]
    spaces = [place for place, character in enumerate(window) if character == " "]
    if line_ends or spaces:
        return exact - reach + min(line_ends or spaces, key=lambda place: abs(place - reach)), end
    # the exact place or, if it lies inside a number, the nearer end of the number
    before = "".join(excerpt(document.pieces, exact - LONGEST_NUMBER, exact))
    after = "".join(excerpt(document.pieces, exact, exact + LONGEST_NUMBER))
    digits_before = len(before) - len(before.rstrip(DIGITS))
    digits_after = len(after) - len(after.lstrip(DIGITS))
    if not (digits_before and digits_after) or digits_before + digits_after > LONGEST_NUMBER:
        return exact, end
    return exact - digits_before if digits_before <= digits_after else exact + digits_after, end
