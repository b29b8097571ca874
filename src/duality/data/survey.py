"""What is in a corpus: how much text, of which kind, its checksum, its first texts; the sample that BPE is trained on.

    all text up to 128 MB; of more, 128 MB that are evenly spread
    of text without spaces (words of more than 256 characters: DNA, Chinese without punctuation) at most 8 MB

What must hold: a survey reads a corpus once and in order; the sample is the same each time; a corpus within both bounds
is its own sample, unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from duality.data import TEXT_COLUMN
from duality.data.documents import Document, read_documents
from duality.data.encode import PART_CHARACTERS, cut_at_borders, num_bytes_of
from duality.data.places import CorpusSpec, list_skipped, locate
from duality.data.readers.text import Excerpt
from duality.data.write import require_label
from duality.files import DocumentRule
from duality.files.progress import Advance, Reporter, silent
from duality.tokenizers.library import LONGEST_WORD

# The pairs of BPE are trained on at most so much text, which is more than any named corpus has, and on at most so much
# without spaces, in which every word is a new one: a megabyte of it takes two seconds.
SAMPLE_BYTES = 128_000_000
UNBROKEN_BYTES = 8_000_000

EXAMPLE_CHARACTERS = 400

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

    def part(self, share: float) -> CorpusSize:
        """The size of a share of the text; the checksum stays that of all."""
        numbers = {name: round(share * getattr(self, name)) for name in ("num_characters", "num_bytes", "num_unbroken")}
        return replace(self, **numbers)


def survey(documents: Iterable[Document], labels: bool) -> CorpusSize:
    """Count what is in the documents, which are read once."""
    num_documents, num_characters, num_bytes, num_unbroken, names = 0, 0, 0, 0, set()
    digest = hashlib.sha256()
    for document in documents:
        num_documents += 1
        if labels:
            names.add(require_label(document))
            digest.update(require_label(document).encode("utf-8") + _BORDER)
        for piece in document.pieces:
            data = piece.encode("utf-8")
            digest.update(data)
            num_characters += len(piece)
            num_bytes += len(data)
            num_unbroken += sum(map(num_bytes_of, _find_unbroken_words(piece)))
        digest.update(_BORDER)
    counts = (num_documents, num_characters, num_bytes, num_unbroken)
    return CorpusSize(*counts, tuple(sorted(names)), digest.hexdigest())


def join_sizes(each: Sequence[CorpusSize]) -> CorpusSize:
    """The size of several corpora; the checksum is that of theirs."""
    if len(each) == 1:
        return each[0]
    names = ("num_documents", "num_characters", "num_bytes", "num_unbroken")
    labels = sorted({label for size in each for label in size.label_names})
    digest = hashlib.sha256("\n".join(size.sha256 for size in each).encode()).hexdigest()
    sums = {name: sum(getattr(size, name) for size in each) for name in names}
    return replace(each[0], **sums, label_names=tuple(labels), sha256=digest)


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
    num_examples: int = 3,
    cache: Path | None = None,
    progress: Reporter = silent,
) -> _Inspection:
    """Read a corpus and count what is in it; the examples are the beginnings of its first documents."""
    first = islice(read_documents(spec, documents, column, cache=cache, progress=progress), num_examples)
    examples = tuple("".join(Excerpt(document.pieces, 0, EXAMPLE_CHARACTERS)) for document in first)
    size = survey(read_documents(spec, documents, column, cache=cache), labels=False)
    files = (file.name for place in locate(spec) for file in place.files(cache=cache))
    return _Inspection(tuple(files), tuple(list_skipped(spec)), size, examples)


def take_evenly(texts: Iterable[str], share: float, unbroken: float) -> Iterator[str]:
    """A share of the texts, and another one of unbroken text, evenly spread over them and the same each time."""
    shares, seen, taken = (share, unbroken), [0, 0], [0, 0]
    for text in texts:
        for part in cut_at_borders(text, PART_CHARACTERS):
            kind = int(sum(map(len, _find_unbroken_words(part))) > len(part) / 2)
            if taken[kind] <= shares[kind] * seen[kind]:
                taken[kind] += len(part)
                yield part
            seen[kind] += len(part)


def _find_unbroken_words(text: str) -> list[str]:
    """The words that are so long that BPE cuts them for training."""
    return [word for word in text.split() if len(word) > LONGEST_WORD]


def count_bytes(texts: Iterable[str], advance: Advance) -> Iterator[str]:
    """The same texts; ``advance`` is called with the bytes of each."""
    for text in texts:
        yield text
        advance(num_bytes_of(text))
