"""A corpus as token stores, made once: read, split, train the tokenizer, encode, keep.

    prepare("austen", BPE(2048))         ->  Corpus(tokenizer, train, validation)
    encode_corpus("more.txt", tokenizer) ->  TokenStore     other text, with a tokenizer that is trained already

The tokenizer is trained on the training part only, BPE on a sample of it if it is large (survey.py). The result is kept
in the cache folder under the sha256 of everything it depends on: the files (path, size, time of change) or the source's
checksums, what a document is, the tokenizer, the split, the labels, the format.

Of a mixture (named.py) every corpus is split by its own rule; the stores have one behind the other.
A dataset with parts of its own (named.py) is not split: its parts are used as they are, if ``split`` is "auto".
Without ``eos`` no end-of-text follows a document in the stores.

``documents`` is the rule of what a document is, ``column`` the key or column that holds its text in files of records
(documents.py). Documents that are lines are never cut in two by the split: "auto" holds out whole lines.

With ``labels=True`` every document must have a label (documents.py), and the stores keep the labels. The label names
are those of the whole corpus, sorted, so that a number means the same label in both parts.

The checksum of the whole text (survey.py) is kept beside the stores; ``check_text`` is called with it before any of a
text that is not in the cache is tokenized, and may refuse it.

What must hold: the same request finds the same folder and reads no text; another tokenizer, split or file finds
another folder; a folder of the cache that was changed in any way (cache.py) is made again, with a message; labels
are kept only if they are requested; a preparation that was killed is continued, and gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Literal, TypeVar

from duality.data import TEXT_COLUMN
from duality.data.documents import (
    CorpusSpec,
    Document,
    find_held_out_part,
    has_only_lines,
    identity,
    locate,
    read_documents,
)
from duality.data.encode import num_bytes_of, write_store
from duality.data.named import PartName, shares_of
from duality.data.readers import COMPRESSIONS
from duality.data.store import FORMAT, TokenStore
from duality.data.survey import CorpusSize, Split, survey
from duality.files import DocumentRule
from duality.files.atomic import atomic_folder, readable_size, remove, write_atomically
from duality.files.cache import cache_errors, cache_folder, seal, verify
from duality.files.progress import Reporter, silent, working
from duality.tokenizers.library import load_tokenizer
from duality.tokenizers.specs import BPE, FROM_FILES, TokenizerSpec
from duality.tokenizers.tokenizer import FILE as TOKENIZER
from duality.tokenizers.tokenizer import Tokenizer

TEXT = "text.json"
GROUPS = "groups.json"
VERSION = 2  # of the steps from text to ids, as far as the rest of the key does not describe them

Documents = Callable[[], Iterator[Document]]
SplitRule = Literal["auto", "document", "position"]
Choices = Mapping[str, str | float | list[str]]
T = TypeVar("T")


@dataclass(frozen=True)
class Corpus:
    """A tokenized corpus: the part for training and the part for validation."""

    tokenizer: Tokenizer
    train: TokenStore
    validation: TokenStore
    text: str
    """The sha256 of its text."""
    groups: tuple[int, ...] = ()
    """Of a mixture, how many of the documents for training each of its corpora has."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels, in the order of their numbers; empty without labels."""
        return self.train.label_names

    def checksums(self) -> dict[str, str | list[str]]:
        """Checksums of the text and of its tokens, and the names of the labels: what corpus.json of a run holds."""
        stores = {"train": self.train, "validation": self.validation}
        return {
            "text": self.text,
            "tokenizer": self.tokenizer.fingerprint,
            "labels": list(self.label_names),
            **{name: [shard.sha256 for shard in store.shards] for name, store in stores.items()},
        }


@dataclass(frozen=True)
class _Request:
    """A corpus and how its documents are read and written; of a corpus that is streamed, only the first ones."""

    spec: CorpusSpec
    tokenizer: TokenizerSpec | Tokenizer
    documents: DocumentRule
    column: str
    eos: bool
    stream: int
    cache: Path | None
    progress: Reporter

    def key(self, choices: Choices, part: PartName | None = None) -> str:
        """The name of its folder of the cache: the hash of everything that the content depends on.

        Of what a document is, only what differs from the defaults is named in it.
        """
        usual = {"documents": "auto", "column": TEXT_COLUMN, "eos": True, "stream": 0}
        own = {name: getattr(self, name) for name, default in usual.items() if getattr(self, name) != default}
        if isinstance(self.tokenizer, TokenizerSpec):
            made_by = {"train": type(self.tokenizer).__name__, **asdict(self.tokenizer)}
        else:
            made_by = {"fingerprint": self.tokenizer.fingerprint}
        files = identity(self.spec, labels=bool(choices["labels"]), part=part, stream=self.stream > 0)
        request = {"version": [VERSION, FORMAT], "files": files, "tokenizer": made_by, **choices, **own}
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode("utf-8")).hexdigest()

    def read(self, spec: CorpusSpec, part: PartName | None = None) -> Iterator[Document]:
        """The documents of a corpus, or of a part of a dataset."""
        start, chosen = 0 if self.stream else None, (spec, self.documents, self.column)
        found = read_documents(*chosen, part=part, start=start, cache=self.cache, progress=self.progress)
        return islice(found, self.stream or None)

    def split(
        self, spec: CorpusSpec, split: SplitRule, validation: float, labels: bool
    ) -> tuple[Mapping[str, Documents], CorpusSize]:
        """How the documents for training and for validation are read, any number of times, and the size of both."""
        own = find_held_out_part(spec, streamed=self.stream > 0) if split == "auto" else None
        if own is not None:
            parts = {"train": partial(self.read, spec, "train"), "validation": partial(self.read, spec, own)}
            for name, part in parts.items():
                if next(part(), None) is None:
                    raise ValueError(f"the part for {name} of {spec!s} has no documents; give one that has")
            return parts, survey((document for part in parts.values() for document in part()), labels)
        size = survey(self.read(spec), labels)
        by = "document" if split == "auto" and has_only_lines(spec, self.documents) else split
        rule = Split.choose(by, validation, size.num_documents)

        def select(held_out: bool) -> Iterator[Document]:
            return rule.select(self.read(spec), held_out)

        if next(select(True), None) is None:
            raise ValueError(f"the corpus {spec!s} is too short to hold out {validation:.2%} of it; give more text")
        return {"train": partial(select, False), "validation": partial(select, True)}, size

    def train(self, documents: Iterable[Document], size: CorpusSize) -> Tokenizer:
        """The tokenizer itself, or the one that its specification makes from the documents, of which there is ``size``.

        BPE is trained on a sample of them if they are many.
        """
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, TokenizerSpec):
            return tokenizer
        num_bytes = size.num_bytes
        texts: Iterator[str] = (piece for document in documents for piece in document.pieces)
        if isinstance(tokenizer, BPE) and size.sample_bytes < num_bytes:
            num_bytes, whole = size.sample_bytes, f"{size.num_bytes / 1e6:,.0f} MB"
            self.progress(
                f"the tokenizer is trained on a sample: {num_bytes / 1e6:,.0f} of {whole}, evenly spread over the text"
            )
            texts = size.sample(texts)
        with working(self.progress, "training the tokenizer", num_bytes, "bytes") as advance:

            def count_bytes() -> Iterator[str]:
                for text in texts:
                    yield text
                    advance(num_bytes_of(text))

            return tokenizer.train(count_bytes(), cache=self.cache, progress=self.progress)

    def encode(
        self, target: Path, parts: Mapping[str, Documents], tokenizer: Tokenizer, names: tuple[str, ...], num_bytes: int
    ) -> None:
        """Write a store of each part, as far as a process that was killed has not written it."""
        with working(self.progress, "encoding", num_bytes, "bytes") as advance:
            for name, documents in parts.items():
                if (target / name).exists():
                    advance(TokenStore.open(target / name).num_bytes)
                    continue
                write_store(target / name, documents(), tokenizer, label_names=names, advance=advance, eos=self.eos)

    def keep(self, doing: str, key: str, open_it: Callable[[Path], T], build: Callable[[Path], None]) -> T:
        """The content of a folder, which is made if it is absent and made again if any of its files was changed."""
        folder = cache_folder(self.cache) / "stores" / key
        with cache_errors(cache_folder(self.cache), f"{doing} {self.spec!s}", self.describe_room):
            if os.path.lexists(folder):
                try:
                    verify(folder)
                    return open_it(folder)
                except ValueError as error:
                    self.progress(f"{error}; it is prepared again")
                    remove(folder)
            with atomic_folder(folder, resume=True) as target:
                build(target)
                seal(target, folder.name)
            verify(folder)
            return open_it(folder)

    def describe_room(self) -> str:
        """How much room the tokens of a corpus need: a text has at most as many tokens as bytes."""
        if self.stream:
            return f"the room of the tokens of {self.stream:,} documents"
        places, made = locate(self.spec), self.tokenizer
        named = sum(1e6 * place.source.megabytes for place in places if place.source is not None)
        files = [file.path for place in places if place.source is None for file in place.files()]
        known = made.expected_vocab_size if isinstance(made, TokenizerSpec) else made.vocab_size
        per_token = 4 if (known or 0) > 1 << 16 else 2
        beyond = "more than" if any(path.suffix.lower() in COMPRESSIONS for path in files) else "up to"
        return f"{beyond} {readable_size(per_token * (named + sum(path.stat().st_size for path in files)))}"


def prepare(
    spec: CorpusSpec,
    tokenizer: TokenizerSpec | Tokenizer,
    *,
    validation: float = 0.05,
    split: SplitRule = "auto",
    labels: bool = False,
    documents: DocumentRule = "auto",
    column: str = TEXT_COLUMN,
    eos: bool = True,
    stream: int = 0,
    cache: Path | None = None,
    progress: Reporter = silent,
    check_text: Callable[[str], None] | None = None,
) -> Corpus:
    """The corpus, split and tokenized; it comes from the cache if it was prepared before.

    Of one that is streamed (stream.py), only the first ``stream`` documents.
    """
    Split.check(split, validation)
    corpora: list[CorpusSpec] = [*shares_of(spec)] or [spec]
    if isinstance(tokenizer, FROM_FILES):  # what is in the files decides, not where they are
        tokenizer = tokenizer.train((), cache=cache, progress=progress)
    request = _Request(spec, tokenizer, documents, column, eos, stream, cache, progress)
    choices: Choices = {"validation": validation, "split": split, "labels": labels}
    if len(corpora) > 1:  # whose parts are split one by one
        choices = {**choices, "mixture": True}

    def build(target: Path) -> None:
        """Write the tokenizer and both stores, as far as a process that was killed has not written them."""
        each = [request.split(one, split, validation, labels) for one in corpora]
        size = CorpusSize.join([found for _, found in each])
        if check_text is not None:
            check_text(size.sha256)
        if len(each) > 1 and not (target / GROUPS).exists():
            counts = [sum(1 for _ in parts["train"]()) for parts, _ in each]
            write_atomically(target / GROUPS, json.dumps(counts))
        progress(f"the tokenizer is {tokenizer}")

        def read(part: str) -> Iterator[Document]:
            return chain.from_iterable(parts[part]() for parts, _ in each)

        if not (target / TOKENIZER).exists():
            share = {name: round((1 - validation) * getattr(size, name)) for name in ("num_bytes", "num_unbroken")}
            made = request.train(read("train"), replace(size, **share))
            write_atomically(target / TEXT, json.dumps({"sha256": size.sha256}))
            made.save(target)
        parts = {part: partial(read, part) for part in ("train", "validation")}
        request.encode(target, parts, load_tokenizer(target), size.label_names, size.num_bytes)

    return request.keep("preparing", request.key(choices), _open_corpus, build)


def encode_corpus(
    spec: CorpusSpec,
    tokenizer: Tokenizer,
    *,
    label_names: tuple[str, ...] | None = None,
    documents: DocumentRule = "auto",
    column: str = TEXT_COLUMN,
    eos: bool = True,
    part: PartName | None = None,
    cache: Path | None = None,
    progress: Reporter = silent,
) -> TokenStore:
    """All documents of a corpus in one store, with a given tokenizer and, for labels, given names.

    ``part`` is the part of a dataset that has parts: only its documents are in the store.
    """
    names = label_names or ()
    request = _Request(spec, tokenizer, documents, column, eos, 0, cache, progress)

    def build(target: Path) -> None:
        """Write the store."""
        progress(f"encoding {spec!s}")
        size = survey(request.read(spec, part), False)
        request.encode(target, {"all": partial(request.read, spec, part)}, tokenizer, names, size.num_bytes)

    key = request.key({"split": "none", "labels": list(names)}, part)
    return request.keep("encoding", key, lambda folder: _open_store(folder / "all", tokenizer), build)


def _open_corpus(folder: Path) -> Corpus:
    """The corpus in a folder of the cache."""
    tokenizer, groups = load_tokenizer(folder), folder / GROUPS
    train, validation = (_open_store(folder / part, tokenizer) for part in ("train", "validation"))
    text = json.loads((folder / TEXT).read_text())["sha256"]
    return Corpus(tokenizer, train, validation, text, tuple(json.loads(groups.read_text())) if groups.exists() else ())


def _open_store(folder: Path, tokenizer: Tokenizer) -> TokenStore:
    """The store in a folder; one whose tokens are those of another tokenizer is refused."""
    store = TokenStore.open(folder)
    if (store.vocab_size, store.tokenizer) != (tokenizer.vocab_size, tokenizer.fingerprint):
        raise ValueError(
            f"{folder} is damaged: its tokens are of the tokenizer {store.tokenizer[:12]}, not of "
            f"{tokenizer.fingerprint[:12]}"
        )
    return store
