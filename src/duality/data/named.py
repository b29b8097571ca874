"""Named corpora: public texts of the package index, and the datasets of the literature. All are in corpora.json.

    sources()    texts in packages of the Python package index (files/archives.py): books, an encyclopedia, molecules
    datasets()   benchmarks with parts of their own (train, validation, test), in a folder, on the hub or in a source

A dataset is given in one of these ways:

    lm1b                     the dataset, wherever it is found
    lm1b=/data/lm1b          the dataset in a folder, or in a file, of yours
    hf:owner/name:column     any dataset of the Hugging Face hub; the column is "text" if it is not given

A dataset without a path is looked for in this order: the folder of its name in $DUALITY_DATA; its source; the Hugging
Face hub, if the library `datasets` is installed. An error says what to download and where to put it.

Each dataset has its own parts as the literature uses them, its reader and its detokenizer. Its parts are those of its
folder, of the hub or of its source; nothing else is split off. A single file is a corpus like any other text file, read
by the dataset's reader and detokenizer. Reader: "lines" has a document in each line; "text" one document, detokenized
line by line, without its blank lines; "records" the rows of a table (.jsonl, .csv, .parquet ...), or whole text files.

A mixture is several corpora in one, each with the share of the sequences that a training takes from it:

    data.corpus=[books.txt:0.7,lm1b:0.3]        seven of ten sequences are of the books

The tokens of a mixture are one store, corpus after corpus; each is split for validation by its own rule, and one
tokenizer is trained on all of them. The shares are no part of the store: they decide in which order the loader visits
it (loader.py).

The library `datasets` has the datasets of the hub as tables on this machine. It keeps what it fetches as files of Arrow
in its own cache (HF_HOME), maps them into memory, and works without a network where HF_HUB_OFFLINE is set or the data
are there. One that is streamed is not kept. Nothing of a dataset is run: those that are programs are refused by the
library, and have their tables on another branch of the hub.

What must hold: a dataset that cannot be had is one line that says why and what to do; a part never has text of another
one; the table is not read before a corpus is named. The table is JSON,
because Python 3.10 has no reader of TOML.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Literal, Protocol

from duality.data.conversions import CONVERSIONS
from duality.extras import import_extra
from duality.files.archives import Source, read_sources
from duality.files.progress import Reporter, silent
from duality.registry import suggestion

DATA_VARIABLE = "DUALITY_DATA"
HUB = "hf:"
_TABLE = Path(__file__).with_name("corpora.json")

PartName = Literal["train", "validation", "test"]
Reader = Literal["lines", "text", "records"]


@dataclass(frozen=True)
class Part:
    """A part of a dataset: patterns of the names of its files, or its name on the hub, and which of what they have.

    The names of this class and of its fields are in the keys of the cache (``documents.identity``).
    """

    files: tuple[str, ...]
    split: str
    documents: tuple[int | None, int | None] = (None, None)
    """from which document to which one, as in a slice; negative numbers count from the end"""
    span: tuple[int, int | None] | None = None
    """from which byte to which one, of the only document of a file; the hub has it in parts"""

    def find_in(self, folder: Path) -> tuple[int, list[Path]] | None:
        """Which pattern is the first that files in the folder have, and these; patterns are forms of one text."""
        for number, pattern in enumerate(self.files):
            found = sorted(path for path in folder.glob(pattern) if path.is_file() and not path.name.startswith("."))
            if found:
                return number, found
        return None


@dataclass(frozen=True)
class Dataset:
    """A dataset of the literature; all its fields as text are part of cache keys (``documents.identity``)."""

    name: str
    title: str
    license: str
    citation: str
    get: str
    """where it can be downloaded"""
    parts: Mapping[PartName, Part]
    evaluated: PartName
    """the part that the paper, and most of the literature, reports"""
    held_out: PartName
    """the part that a training is validated on"""
    reader: Reader = "records"
    column: str = "text"
    detokenizer: str | None = None
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    package: str | None = None
    """the named source of the package index that has it"""

    @classmethod
    def of_hub(cls, spec: str) -> Dataset:
        """A dataset of the hub: hf:owner/name, with @config and :column if they are needed.

        >>> Dataset.of_hub("hf:owner/name@small:body").column
        'body'
        """
        place, _, column = spec.removeprefix(HUB).partition(":")
        name, _, config = place.partition("@")
        if not name.strip():
            raise ValueError(f"{spec!r} names no dataset of the hub: write hf:owner/name, or hf:owner/name:column")
        return cls(
            name=spec,
            title=f"{name} of the Hugging Face hub",
            license="as the hub says",
            citation="as the hub says",
            get=name,
            parts={"train": Part((), "train"), "validation": Part((), "validation"), "test": Part((), "test")},
            evaluated="test",
            held_out="validation",
            column=column or "text",
            hub=name,
            config=config or None,
        )

    def part(self, name: PartName) -> Part:
        """One of its parts; one that it does not have is an error."""
        if name not in self.parts:
            raise ValueError(f"{self.name} has no part {name!r}: it has {', '.join(self.parts)}")
        return self.parts[name]

    def files_in(self, folder: Path, part: PartName | None) -> list[Path]:
        """The files of a part in a folder; of all parts, those of as many as there are, but of one at least."""
        names = [part] if part is not None else [name for name, each in self.parts.items() if each.find_in(folder)]
        found: dict[Path, None] = {}
        for name in names or list(self.parts)[:1]:
            if (files := self.part(name).find_in(folder)) is None:
                there_are = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
                raise ValueError(
                    f"{folder} has no file of the part {name!r} of {self.name}: looked for "
                    f"{' or '.join(self.parts[name].files)}, found {there_are}; {self.how_to_get()}"
                )
            found.update(dict.fromkeys(files[1]))
        return list(found)

    def choose_part(self, usual: PartName, streamed: bool = False) -> PartName | None:
        """The usual part; of a dataset that is streamed, or known to the hub alone, the first one not for training."""
        if not self.name.startswith(HUB) and not streamed:
            return usual
        there = self.load_splits(streaming=True) if streamed else self.fetch_splits()
        return next((name for name, part in self.parts.items() if name != "train" and part.split in there), None)

    def how_to_get(self) -> str:
        """What to download, and what to do with it."""
        return (
            f"download {self.get}, and say where it is: --data {self.name}=FOLDER, or put it into "
            f"${DATA_VARIABLE}/{self.name}"
        )

    @property
    def title_at_hub(self) -> str:
        """What it is on the hub, for messages."""
        return f"the dataset {self.hub or self.get}" + (f" ({self.config})" if self.config else "")

    def load_splits(self, streaming: bool) -> Mapping[str, _Split]:
        """Its splits on the hub; what is read of those that are streaming is not kept."""
        return _load_splits(self.title_at_hub, self.hub or self.get, self.config, self.revision, streaming)

    def fetch_splits(self, progress: Reporter = silent) -> dict[str, list[Path]]:
        """The files of Arrow of each of its splits on the hub, fetched if they are not there."""
        progress(f"looking for {self.title_at_hub} on the Hugging Face hub")
        found = self.load_splits(streaming=False)
        return {str(split): [Path(file["filename"]) for file in part.cache_files] for split, part in found.items()}


@once
def sources() -> dict[str, Source]:
    """The named texts of the package index."""
    return read_sources(_TABLE)


@once
def datasets() -> dict[str, Dataset]:
    """The datasets of the literature."""
    table = json.loads(_TABLE.read_text(encoding="utf-8"))["datasets"]
    for entry in table.values():
        for part, fields in entry["parts"].items():
            tuples = {field: tuple(value) for field, value in fields.items() if isinstance(value, list)}
            entry["parts"][part] = Part(**fields | tuples)
    return {name: Dataset(name, **entry) for name, entry in table.items()}


def shares_of(spec: object) -> dict[str, float]:
    """The weight of each corpus of a mixture, which add up to 1; none if this is no mixture, or a path that exists.

    >>> shares_of("[a.txt:3,hf:owner/name:text:1]")
    {'a.txt': 0.75, 'hf:owner/name:text': 0.25}
    >>> shares_of("a.txt")
    {}
    """
    text = spec.strip() if isinstance(spec, str) else ""
    if not (text.startswith("[") and text.endswith("]")) or Path(str(spec)).exists():
        return {}
    rule = "write a mixture as [CORPUS:WEIGHT,CORPUS:WEIGHT], such as [books.txt:0.7,lm1b:0.3]"
    weights: dict[str, float] = {}
    parts = text[1:-1].split(",")
    for part in parts:
        corpus, _, number = part.strip().rpartition(":")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not corpus or not 0 < weight < float("inf"):
            raise ValueError(f"{part.strip()!r} is no corpus with a positive weight; {rule}")
        weights[corpus] = weight
    if len(parts) < 2 or len(weights) < len(parts):
        raise ValueError(f"{text} has fewer than two corpora, or one twice; {rule}")
    return {corpus: weight / sum(weights.values()) for corpus, weight in weights.items()}


class _Split(Protocol):
    """A split of a dataset: the files of one that is fetched, the rows of one that is streamed."""

    cache_files: Sequence[Mapping[str, str]]

    def skip(self, n: int) -> Iterable[Mapping[str, object]]: ...


@once
def _load_splits(
    what: str, name: str, config: str | None, revision: str | None, streaming: bool
) -> Mapping[str, _Split]:
    """The splits of a dataset as the library has them, once for each process; an error names ``what``."""
    library = import_extra("data", f"{what}, which is on the Hugging Face hub,", "datasets")
    try:
        found: Mapping[str, _Split] = library.load_dataset(name, config, revision=revision, streaming=streaming)
    except Exception as error:  # the library has as many kinds of errors as there are reasons
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"{what} cannot be had from the Hugging Face hub ({reason}): look at the name and the network, and at "
            "HF_HUB_OFFLINE if it is set; or download the dataset and give its folder"
        ) from None
    return found


def fetch(name: str, *, cache: Path | None = None, progress: Reporter = silent) -> list[Path]:
    """The text files of a named source, checked; they come from the cache, or else from the package index."""
    if name not in sources():
        raise ValueError(f"no named corpus {name!r}: {suggestion(name, sources())}")
    source, instead = sources()[name], "use your own text with --data FILE"
    return source.fetch("sources", instead, cache, progress, CONVERSIONS.get(source.kind))
