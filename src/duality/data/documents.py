"""Documents: from the string that names a corpus to its parts.

    locate("lm1b=/data/lm1b")                   ->  [Place(path, dataset)]    one for each corpus of a list or a mixture
    place.files(part="test")                    ->  its files
    read_documents("lm1b=/data", part="test")   ->  its documents, each with its name, its text in pieces and its label

A path that exists is a file or a folder. If there is none, the string is a mixture, a dataset of the hub, or a named
corpus (named.py). What a document is:

    a text file          one document                book.txt, notes.md, any UTF-8 file
                         or one per line             with the rule "lines", blank lines left out
    a file of records    one document per record     .jsonl, .csv, .tsv, tables of Arrow, .fasta (readers.py)
    a folder             every .txt, .text, .md and .jsonl file below it, sorted by path; if it has none, every table;
                         if it has none either, every .fasta file

The rule of a corpus is "lines" for all its text files, or "auto": then a named source or dataset says for its own files
what a document is. A document may have a label, the class of its text:

    a record             its own label, if it has one
    a folder             the first-level subfolder of the file: reviews/good/17.txt is "good"
    a named corpus       the author of a book of Project Gutenberg: austen-emma.txt is "austen"

What must hold: a document gives its text in pieces, any number of times, so that a file may be larger than the memory;
the order of the documents depends on their paths only; no document is dropped, not even an empty one, except blank
lines; a file that is no text by its ending, such as .json or .zip, is refused with what to do; what identifies a corpus
(``identity``) changes with every file of it, and is the same in every release, because stores are found by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from duality.data import TEXT_COLUMN, readers
from duality.data.detokenizers import DETOKENIZERS
from duality.data.named import DATA_VARIABLE, HUB, Dataset, Part, PartName, datasets, fetch, shares_of, sources
from duality.data.tales.corpus import NAME as TALES
from duality.data.tales.corpus import Tales
from duality.files import DocumentRule
from duality.files.archives import Source
from duality.files.atomic import check_file
from duality.files.progress import Reporter, silent
from duality.registry import suggestion

# What to do with files that would be learnt as they are, with all their brackets and names of fields, or not at all.
_NO_TEXT = {
    ending: remedy
    for endings, remedy in {
        ".json": "write one JSON object per line into a .jsonl file, with the text under the key 'text' or --column "
        "NAME",
        ".ndjson .jsonlines": "rename it to .jsonl",
        ".orc": "convert it, for example with pandas: read_orc(FILE).to_parquet('text.parquet')",
        ".zip .tar .tgz .txz .tbz2 .7z .rar": "unpack it and give the folder",
        ".lz4 .lzma .z .br": "unpack it, or compress it as .gz, .xz, .bz2 or .zst",
        ".pdf .doc .docx .odt .rtf .epub": "save its text as a .txt file",
        ".xls .xlsx .ods": "save the sheet as a .csv file",
        ".db .sqlite .sqlite3": "export the texts as a .csv or .jsonl file",
        ".npy .npz .pt .pkl .safetensors": "give ids from Python: duality.train(data=tensor)",
    }.items()
    for ending in endings.split()
}

CorpusSpec = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Document:
    """A name for messages, the text in pieces that can be read any number of times, and the label if there is one."""

    name: str
    pieces: Iterable[str]
    label: str | None = None

    def require_label(self) -> str:
        """Its label; a document without one is an error."""
        if self.label is None:
            raise ValueError(
                f"the document {self.name} has no label, and labels were requested: write a string or a whole number "
                'under the key "label" of a .jsonl line, or give a folder whose text files are in subfolders named by '
                "their label, or request no labels"
            )
        return self.label


@dataclass(frozen=True)
class _File:
    """One file of a corpus: its name for messages, where it is, and the label of its documents."""

    name: str
    path: Path
    label: str | None = None


@dataclass(frozen=True)
class Place:
    """Where one corpus is: at a path, in the package of a source, generated (tales), or, with none, on the hub."""

    path: Path | None = None
    dataset: Dataset | None = None
    source: Source | None = None
    tales: Tales | None = None

    @property
    def on_hub(self) -> bool:
        """Whether it is a dataset of the hub."""
        return self.path is None and self.source is None and self.tales is None

    @property
    def dataset_in_parts(self) -> Dataset | None:
        """Its dataset, if that has its own parts here: a single file has none."""
        return self.dataset if self.path is None or self.path.is_dir() else None

    @property
    def by_line(self) -> bool:
        """Whether its dataset or its source says that a line is a document."""
        own = self.dataset.reader if self.dataset is not None else self.source and self.source.documents
        return own == "lines"

    def files(
        self, part: PartName | None = None, cache: Path | None = None, progress: Reporter = silent
    ) -> list[_File]:
        """Its files; of a dataset with parts those of the ``part``, or those of all parts, each once."""
        dataset, source, path = self.dataset, self.source, self.path
        if source is not None:
            paths = fetch(source.name, cache=cache, progress=progress)
            if dataset is None:
                named = source.kind == "gutenberg"  # by author and title: austen-emma.txt
                authors = (path.name.partition("-")[0] if named and "-" in path.name else None for path in paths)
                return [_File(path.name, path, author) for path, author in zip(paths, authors)]
            paths = dataset.files_in(paths[0].parent, part)
        elif self.tales is not None:
            paths = self.tales.dataset.files_in(self.tales.fetch(cache, progress), part)
        elif path is None:
            assert dataset is not None, "neither a path nor a source nor a dataset"
            there = dataset.fetch_splits(progress)
            splits = [dataset.part(name).split for name in (dataset.parts if part is None else [part])]
            if part is not None and splits[0] not in there:
                raise ValueError(f"{dataset.name} has no part {splits[0]!r} on the hub: it has {', '.join(there)}")
            paths = [path for split in dict.fromkeys(splits) for path in there.get(split, [])]
        elif not path.is_dir():
            paths = [path]
        elif dataset is not None:
            paths = dataset.files_in(path, part)
        else:
            names, _ = _list_folder(path)
            if not names:
                endings = ", ".join(ending for kind in readers.KINDS for ending in kind)
                allowed = f"{endings}, and these followed by {' or '.join(readers.COMPRESSIONS)}"
                raise ValueError(f"the folder {path} has no text files; looked for are {allowed}")
            return [_File(name, path / name, name.partition("/")[0] if "/" in name else None) for name in names]
        for path in paths:
            check_file(path, "give a text file or a folder of them")
            if (ending := readers.ending_of(path)) in _NO_TEXT:
                raise ValueError(f"{path} is no text file ({ending}): {_NO_TEXT[ending]}")
        return [_File(str(path), path) for path in paths]


def locate(spec: CorpusSpec) -> list[Place]:
    """The places of all corpora of a specification.

    A named dataset is at the path that is given, or in $DUALITY_DATA, or in a package, or on the hub.
    """
    if not isinstance(spec, (str, Path)):
        if not spec:
            raise ValueError("the list of corpora is empty; give at least one path or name")
        return [place for part in spec for place in locate(part)]
    name, path = str(spec), Path(spec).expanduser()
    if name.strip() and path.exists():
        return [Place(path)]
    if name.partition(":")[0] == TALES:
        tales = Tales.of(name)
        return [Place(dataset=tales.dataset, tales=tales)]
    if mixed := shares_of(name):
        return locate(list(mixed))
    if name.startswith(HUB):
        return [Place(dataset=Dataset.of_hub(name))]
    own, given, where = name.partition("=")
    if own in datasets() and (where or not given):
        dataset, root = datasets()[own], os.environ.get(DATA_VARIABLE)
        if where or root:
            path = Path(where).expanduser() if where else Path(root or "").expanduser() / own
            if path.exists():
                return [Place(path, dataset)]
        if where:
            raise ValueError(f"{own}={where}: there is no such file or folder; {dataset.how_to_get()}")
        return [Place(dataset=dataset, source=None if dataset.package is None else sources()[dataset.package])]
    if name in sources():
        return [Place(source=sources()[name])]
    raise ValueError(
        f"no file, folder or named corpus {name!r}; give a path that exists or a named corpus: "
        f"{suggestion(name, {**sources(), **datasets(), TALES: Tales})}"
    )


def is_there(spec: str) -> bool:
    """Whether a corpus is a name, or a path that exists."""
    with suppress(ValueError):
        return bool(locate(spec))
    return False


def identity(
    spec: CorpusSpec, *, labels: bool = False, part: PartName | None = None, stream: bool = False
) -> list[list[str | int | None]]:
    """What identifies the content of a corpus without reading it: a part of cache keys.

    With labels it includes those of the files: the label of a file depends on which folder above it is given. A
    dataset of the hub that is streamed has no files here: it is known by its name and revision.
    """
    found: list[list[str | int | None]] = []
    for place in locate(spec):
        if place.source is not None and place.dataset is None:
            own = [] if place.source.documents == "auto" else [place.source.documents]
            found += [[name, member.text_sha256, *own] for name, member in place.source.members.items()]
            continue
        if place.dataset is not None:
            found.append([str(place.dataset), "part", str(part)])
            if place.tales is not None or (stream and place.on_hub):
                continue
        for file in place.files(part):
            status = file.path.stat()
            with readers.open_bytes(file.path) as (_, mark):
                more = [*["table"] * (readers.ending_of(file.path) in readers.TABLE_ENDINGS), *["mark"] * (mark > 0)]
            label = [file.label] if labels else []
            found.append([str(file.path.resolve()), status.st_size, status.st_mtime_ns, *label, *more])
    return found


def has_only_lines(spec: CorpusSpec, rule: DocumentRule = "auto") -> bool:
    """Whether every document of a corpus is a line of a text file, by the rule or by that of its named corpora."""
    return all(place.by_line for place in locate(spec)) or rule == "lines"


def find_evaluated_part(spec: CorpusSpec) -> PartName | None:
    """The part of a dataset that the literature reports; None for a corpus without parts."""
    place, *others = locate(spec)
    dataset = place.dataset_in_parts
    return None if others or dataset is None else dataset.choose_part(dataset.evaluated)


def find_held_out_part(spec: CorpusSpec, streamed: bool = False) -> PartName | None:
    """The part of its own that a dataset is validated on; None for a corpus that must be split.

    Of one that is streamed, it must be apart from the part for training, so that it can be had without that. Parts in
    two forms of a text, such as .tokens and .raw, are refused.
    """
    place, *others = locate(spec)
    if others or (dataset := place.dataset_in_parts) is None:
        return None
    parts = {name: part for name, part in dataset.parts.items() if name in ("train", dataset.held_out)}
    if len(parts) < 2:
        return None
    if streamed and any(part.span is not None or part.documents != (None, None) for part in parts.values()):
        return None
    if not streamed and place.path is not None:
        forms = {name: found[0] for name, part in parts.items() if (found := part.find_in(place.path))}
        if len(set(forms.values())) > 1:
            both = ", ".join(f"{name}: {parts[name].files[form]}" for name, form in forms.items())
            raise ValueError(
                f"the parts of {dataset.name} in {place.path} are in two forms ({both}): remove the files of one form, "
                "so that training and validation have the same"
            )
    return dataset.choose_part(dataset.held_out, streamed and place.on_hub)


def list_skipped(spec: CorpusSpec) -> list[str]:
    """The files in the folders of a corpus that are not read."""
    folders = [place.path for place in locate(spec) if place.path and place.dataset is None and place.path.is_dir()]
    return [name for folder in folders for name in _list_folder(folder)[1]]


def _list_folder(folder: Path) -> tuple[list[str], list[str]]:
    """The files below a folder that are read and those that are not, by their paths from there."""
    every = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    each = ([name for name in every if readers.ending_of(Path(name)) in endings] for endings in readers.KINDS)
    chosen = next((names for names in each if names), [])
    return chosen, sorted(set(every) - set(chosen))


def read_documents(
    spec: CorpusSpec,
    rule: DocumentRule = "auto",
    column: str = TEXT_COLUMN,
    *,
    part: PartName | None = None,
    start: int | None = None,
    cache: Path | None = None,
    progress: Reporter = silent,
) -> Iterator[Document]:
    """The documents of a corpus; a wrong specification is an error at the call, before the first document.

    ``part`` is the part of a dataset that has parts; without it the documents are those of all its parts. With
    ``start`` they are those from this number on, for a corpus that is streamed: of a dataset of the hub they are read
    as they are needed and not kept.
    """
    if rule not in ("auto", "lines"):
        raise ValueError(f"a document is 'auto' or 'lines'; got {rule!r}")
    located = locate(spec)
    if start is not None and len(located) == 1 and located[0].on_hub:
        return _stream_rows(located[0], start, column, part)
    places = [(place, place.files(part, cache, progress)) for place in located]
    files = [file.path for _, those in places for file in those]
    if all(path.stat().st_size == 0 for path in files):
        raise ValueError(f"the corpus {spec!s} is empty ({len(files)} file(s) of 0 bytes); give one with text in it")
    if column != TEXT_COLUMN and not any(map(readers.has_records, files)):
        raise ValueError(
            f"the column {column!r} was chosen, but the corpus {spec!s} has no .jsonl, .csv or .tsv file and no other "
            "table; leave the column out, or give such a file"
        )
    documents = (document for place, those in places for document in _read_part(place, those, rule, column, part))
    return islice(documents, start, None)


def _stream_rows(place: Place, start: int, column: str, part: PartName | None) -> Iterator[Document]:
    """The documents of a dataset of the hub from number ``start`` on, read as they are needed and not kept."""
    dataset = place.dataset
    assert dataset is not None, "it is on the hub"
    if dataset.reader == "text":
        raise ValueError(f"{dataset.name} is one long text on the hub, which cannot be streamed: set data.stream=0")
    split, there = "train" if part is None else dataset.part(part).split, dataset.load_splits(streaming=True)
    if split not in there:
        raise ValueError(f"{dataset.title_at_hub} has no split {split!r}: it has {', '.join(there)}")
    chosen, read = _choose_reading(dataset, column)
    rows = enumerate(there[split].skip(start), start + 1)
    records = (readers.make_record(row, chosen, dataset.name, number) for number, row in rows)
    return (Document(f"{dataset.name}:{number}", (read(text),), label) for number, text, label in records)


def _choose_reading(dataset: Dataset | None, column: str) -> tuple[str, Callable[[str], str]]:
    """The column that is read, by default that of the dataset, and what makes text of it: the dataset's detokenizer."""
    if dataset is None:
        return column, str
    read = str if dataset.detokenizer is None else DETOKENIZERS[dataset.detokenizer]
    return dataset.column if column == TEXT_COLUMN else column, read


def _read_part(
    place: Place, files: Sequence[_File], rule: DocumentRule, column: str, part: PartName | None
) -> Iterator[Document]:
    """The documents in the files of a place, those of the part of a dataset if one is named."""

    def read() -> Iterator[Document]:
        return (document for file in files for document in _read_file(place, file, rule, column))

    dataset = place.dataset_in_parts
    chosen = Part((), "") if part is None or dataset is None else dataset.part(part)
    if chosen.span is not None and not place.on_hub:
        cut = partial(readers.excerpt, start=chosen.span[0], stop=chosen.span[1], in_bytes=True)
        return (replace(document, pieces=readers.Repeatable(partial(cut, document.pieces))) for document in read())
    start, stop = chosen.documents
    least = max(-(bound or 0) for bound in chosen.documents)  # documents, counted from the end
    if dataset is not None and least > 0:
        count = sum(1 for _ in read())
        start, stop, _ = slice(start, stop).indices(count)
        if count <= least:
            raise ValueError(
                f"{dataset.name} has {count:,} documents here, and the last {least:,} are its part for "
                "validation: this is a sample of it; give its file or files as a corpus of their own, without the name"
            )
    return islice(read(), start, stop)


def _read_file(place: Place, file: _File, rule: DocumentRule, column: str) -> Iterator[Document]:
    """The documents of one file."""
    dataset, name, path, is_table = place.dataset, file.name, file.path, readers.has_records(file.path)
    column, read = _choose_reading(dataset, column)
    if dataset is not None and dataset.reader == "text":

        def rows() -> Iterator[str]:
            """The lines of a file with their line ends, or the rows of a table, each detokenized; no blank ones."""
            records = (text for _, text, _ in readers.read_records(path, column))
            return (read(text) for text in (records if is_table else readers.decode_lines(path)) if text.strip())

        yield Document(name, readers.Repeatable(rows), file.label)
    elif is_table or rule == "lines" or place.by_line:
        # the lines of some benchmarks have a space at either end, which is no text
        strip = dataset is not None and not is_table
        for number, text, label in readers.read_records(path, column, file.label):
            yield Document(f"{name}:{number}", (read(text.strip() if strip else text),), label)
    else:
        pieces = readers.Repeatable(partial(readers.read_pieces, path))
        yield Document(name, pieces if read is str else (read("".join(pieces)),), file.label)
