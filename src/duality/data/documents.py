"""Documents: the parts of a corpus.

A corpus is given as a path, as the name of a source or of a dataset (named.py), or as a list of them:

    a text file          one document                book.txt, notes.md, any UTF-8 file
                         or one per line             with the rule "lines", blank lines left out
    a .jsonl file        one document per line       the value of a key, "text" if nothing else is chosen
    a .csv, .tsv file    one document per row        the value of a column, "text" if nothing else is chosen
    a .parquet, .arrow   the same                    tables of Arrow, also those that `datasets` has saved
    a .fasta file        one document per sequence
    a folder             every .txt, .text, .md and .jsonl file below it, sorted by path; if it has none, every table;
                         if it has none either, every .fasta file

All these files, tables of Arrow excepted, may be compressed (.gz, .xz, .bz2, .zst). A file that is no text by its
ending, such as .json or .zip, is refused with what to do. If a path and a source have the same name, the path is used.
The rule of a corpus is "lines" for all its text files, or "auto": then a named source or dataset says for its own files
what a document is.

A document may have a label, the class of its text:

    a .jsonl file        the value of the key "label", a string or a whole number (as its digits)
    a .csv, .tsv file    the value of the column "label", if it is not empty
    a folder             the first-level subfolder of the file: reviews/good/17.txt is "good"
    a named corpus       the author of a book of Project Gutenberg: austen-emma.txt is "austen"

The label of a line is used before that of its file. A value that is neither string nor whole number is no label.

What must hold: a document gives its text in pieces, any number of times, so that a file may be larger than the memory;
the order of the documents depends on their paths only; no document is dropped, not even an empty one, except blank
lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from duality.data import TEXT_COLUMN
from duality.data.detokenizers import DETOKENIZERS
from duality.data.named import Dataset, PartName
from duality.data.places import CorpusFile, CorpusSpec, Place, locate
from duality.data.readers import Excerpt, TextFile, decode_lines, has_records, make_record, read_lines, read_records
from duality.files import DocumentRule
from duality.files.progress import Reporter, silent


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
    files = [file for _, those in places for file in those]
    if all(file.path.stat().st_size == 0 for file in files):
        raise ValueError(f"the corpus {spec!s} is empty ({len(files)} file(s) of 0 bytes); give one with text in it")
    if column != TEXT_COLUMN and not any(has_records(file.path) for file in files):
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
    records = (make_record(row, chosen, dataset.name, number) for number, row in rows)
    return (Document(f"{dataset.name}:{number}", (read(text),), label) for number, text, label in records)


def _choose_reading(dataset: Dataset | None, column: str) -> tuple[str, Callable[[str], str]]:
    """The column that is read, by default that of the dataset, and what makes text of it: the dataset's detokenizer."""
    if dataset is None:
        return column, str
    read = str if dataset.detokenizer is None else DETOKENIZERS[dataset.detokenizer]
    return dataset.column if column == TEXT_COLUMN else column, read


def _read_part(
    place: Place, files: Sequence[CorpusFile], rule: DocumentRule, column: str, part: PartName | None
) -> Iterator[Document]:
    """The documents in the files of a place, those of the part of a dataset if one is named."""

    def read() -> Iterator[Document]:
        return (document for file in files for document in _read_file(file, rule, column))

    if part is None or place.dataset is None or not place.has_parts:
        yield from read()
        return
    chosen = place.dataset.part(part)
    if chosen.span is not None and not place.on_hub:
        for document in read():
            yield replace(document, pieces=Excerpt(document.pieces, *chosen.span, in_bytes=True))
        return
    start, stop = chosen.documents
    if (start or 0) < 0 or (stop or 0) < 0:
        count = sum(1 for _ in read())
        start, stop, _ = slice(start, stop).indices(count)
        least = max(abs(bound or 0) for bound in chosen.documents)
        if count <= least:
            raise ValueError(
                f"{place.dataset.name} has {count:,} documents here, and the last {least:,} are its part for "
                "validation: this is a sample of it; give its file or files as a corpus of their own, without the name"
            )
    yield from islice(read(), start, stop)


def _read_file(file: CorpusFile, rule: DocumentRule, column: str) -> Iterator[Document]:
    """The documents of one file."""
    dataset, name = file.dataset, file.name
    column, read = _choose_reading(dataset, column)
    by_line = "lines" in (rule, file.rule) or (dataset is not None and dataset.reader == "lines")
    if dataset is not None and dataset.reader == "text":
        yield Document(name, _Rows(file, column, read), file.label)
    elif has_records(file.path):
        for number, text, label in read_records(file.path, column, file.label):
            yield Document(f"{name}:{number}", (read(text),), label)
    elif by_line:
        for number, text in read_lines(file.path):
            # the lines of some benchmarks have a space at either end, which is no text
            yield Document(f"{name}:{number}", (text if dataset is None else read(text.strip()),), file.label)
    else:
        pieces = TextFile(file.path)
        yield Document(name, pieces if read is str else (read("".join(pieces)),), file.label)


@dataclass(frozen=True)
class _Rows:
    """The lines of a file with their line ends, or the rows of a table, each detokenized; blank ones are left out."""

    file: CorpusFile
    column: str
    read: Callable[[str], str]

    def __iter__(self) -> Iterator[str]:
        """Read the file again."""
        path = self.file.path
        records = has_records(path)
        rows = (text for _, text, _ in read_records(path, self.column)) if records else decode_lines(path)
        yield from (self.read(row) for row in rows if row.strip())
