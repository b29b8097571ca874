"""Documents: the parts of a corpus.

A corpus is given as a path, as the name of a source (sources.py), or as a list of them:

    a text file          one document                book.txt, notes.md, any UTF-8 file
                         or one per line             with the rule "lines", blank lines left out
    a .jsonl file        one document per line       the value of a key, "text" if nothing else is chosen
    a .csv, .tsv file    one document per row        the value of a column, "text" if nothing else is chosen
    a folder             every .txt, .text, .md and .jsonl file below it, sorted by path; if it has none, every .csv and
                         .tsv file

Any of these files may be compressed (.gz, .xz). A file that is no text by its ending, such as .json or .zip, is refused
with what to do. If a path and a source have the same name, the path is used. The rule of a corpus is "lines" for all
its text files, or "auto": then a named source says for its own files what a document is.

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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from duality.data.cache import Progress, silent
from duality.data.records import TEXT_COLUMN, json_records, table_records
from duality.data.sources import SOURCES, DocumentRule, Source, fetch
from duality.data.textfiles import COMPRESSIONS, TextFile, has_mark, text_lines
from duality.registry import suggestion

TEXT_ENDINGS = (".txt", ".text", ".md", ".jsonl")
TABLE_ENDINGS = (".csv", ".tsv")

# What to do with files that would be learnt as they are, with all their brackets and names of fields, or not at all.
_UNPACK = "unpack it and give the folder"
_COMPRESS = "unpack it, or compress it as .gz or .xz"
_CONVERT = "convert it, for example with pandas: read_parquet(FILE).to_json('text.jsonl', orient='records', lines=True)"
_PLAIN = "save its text as a .txt file"
NO_TEXT = {
    ".json": "write one JSON object per line into a .jsonl file, with the text under the key 'text' or --column NAME",
    **dict.fromkeys((".ndjson", ".jsonlines"), "rename it to .jsonl"),
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".orc"), _CONVERT),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".txz", ".tbz2", ".7z", ".rar"), _UNPACK),
    **dict.fromkeys((".bz2", ".zst", ".lz4", ".lzma", ".z", ".br"), _COMPRESS),
    **dict.fromkeys((".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub"), _PLAIN),
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "save the sheet as a .csv file"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "export the texts as a .csv or .jsonl file"),
    **dict.fromkeys(
        (".npy", ".npz", ".pt", ".pkl", ".safetensors"), "give ids from Python: duality.train(data=tensor)"
    ),
}

CorpusSpec = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Document:
    """A name for messages, the text in pieces that can be read any number of times, and the label if there is one."""

    name: str
    pieces: Iterable[str]
    label: str | None = None


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus: its name for messages, where it is, the label of its documents, and what a document is."""

    name: str
    path: Path
    label: str | None = None
    rule: DocumentRule = "auto"


@dataclass(frozen=True)
class Overview:
    """A named corpus that has been fetched: its files, their size, its documents, and the first lines of its text."""

    files: tuple[Path, ...]
    num_bytes: int
    num_documents: int
    examples: tuple[str, ...]


def overview(name: str, *, cache: Path | None = None, progress: Progress = silent, lines: int = 3) -> Overview:
    """What a named corpus is; it is fetched if it is not in the cache."""
    files = tuple(fetch(name, cache=cache, progress=progress))
    found = (document for file in text_files(SOURCES[name], cache) for document in documents_of(file))
    examples = tuple(text for _, text in islice(text_lines(files[0]), lines))
    return Overview(files, sum(file.stat().st_size for file in files), sum(1 for _ in found), examples)


def read_documents(
    spec: CorpusSpec,
    rule: DocumentRule = "auto",
    column: str = TEXT_COLUMN,
    *,
    cache: Path | None = None,
    progress: Progress = silent,
) -> Iterator[Document]:
    """The documents of a corpus; a wrong specification is an error at the call, before the first document."""
    check_rule(rule)
    files = [found for place in locate(spec) for found in text_files(place, cache, progress)]
    if all(file.path.stat().st_size == 0 for file in files):
        raise ValueError(f"the corpus {spec!s} is empty ({len(files)} file(s) of 0 bytes); give one with text in it")
    if column != TEXT_COLUMN and not any(has_records(file.path) for file in files):
        raise ValueError(
            f"the column {column!r} was chosen, but the corpus {spec!s} has no .jsonl, .csv or .tsv file; leave the "
            "column out, or give such a file"
        )
    return (document for file in files for document in documents_of(file, rule, column))


def check_rule(rule: str) -> None:
    """Refuse a rule that does not exist."""
    if rule not in ("auto", "lines"):
        raise ValueError(f"a document is 'auto' or 'lines'; got {rule!r}")


def all_lines(spec: CorpusSpec, rule: DocumentRule = "auto") -> bool:
    """Whether every document of a corpus is a line of a text file, by the rule or by that of its named sources."""
    return rule == "lines" or all(isinstance(place, Source) and place.documents == "lines" for place in locate(spec))


def documents_of(file: CorpusFile, rule: DocumentRule = "auto", column: str = TEXT_COLUMN) -> Iterator[Document]:
    """The documents of one file."""
    ending = ending_of(file.path)
    if has_records(file.path):
        table = ending in TABLE_ENDINGS
        records = (
            table_records(file.path, ending, column, file.label)
            if table
            else json_records(file.path, column, file.label)
        )
        for number, text, label in records:
            yield Document(f"{file.name}:{number}", (text,), label)
    elif "lines" in (rule, file.rule):
        for number, text in text_lines(file.path):
            yield Document(f"{file.name}:{number}", (text,), file.label)
    else:
        yield Document(file.name, TextFile(file.path), file.label)


def locate(spec: CorpusSpec) -> list[Path | Source]:
    """The path or the named source that each part of a corpus specification stands for."""
    if not isinstance(spec, (str, Path)):
        if not spec:
            raise ValueError("the list of corpora is empty; give at least one path or name")
        return [place for part in spec for place in locate(part)]
    name = str(spec)
    path = Path(spec).expanduser()
    if name.strip() and path.exists():
        return [path]
    if name in SOURCES:
        return [SOURCES[name]]
    raise ValueError(
        f"no file, folder or named corpus {name!r}; give a path that exists or a named corpus: "
        f"{suggestion(name, SOURCES)}"
    )


def identity(spec: CorpusSpec, *, labels: bool = False) -> list[list[str | int | None]]:
    """What identifies the content of a corpus without reading it, but for a byte order mark: a part of cache keys.

    With labels it includes those of the files: the label of a file depends on which folder above it is given.
    """
    parts: list[list[str | int | None]] = []
    for place in locate(spec):
        if isinstance(place, Source):
            own = [] if place.documents == "auto" else [place.documents]
            parts += [[name, member.text_sha256, *own] for name, member in place.members.items()]
            continue
        for file in text_files(place):
            status = file.path.stat()
            label = [file.label] if labels else []
            # Older versions read tables as plain text and kept the mark: their stores must not be found.
            table = ["table"] if ending_of(file.path) in TABLE_ENDINGS else []
            mark = ["mark"] if has_mark(file.path) else []
            parts.append([str(file.path.resolve()), status.st_size, status.st_mtime_ns, *label, *table, *mark])
    return parts


def text_files(place: Path | Source, cache: Path | None = None, progress: Progress = silent) -> list[CorpusFile]:
    """The files of one part of a corpus."""
    if isinstance(place, Source):
        paths = fetch(place.name, cache=cache, progress=progress)
        return [CorpusFile(path.name, path, author(place, path.name), place.documents) for path in paths]
    if not place.is_dir():
        check_ending(place)
        return [CorpusFile(str(place), place)]
    found, _ = folder_files(place)
    if not found:
        allowed = f"{', '.join((*TEXT_ENDINGS, *TABLE_ENDINGS))}, and these followed by {' or '.join(COMPRESSIONS)}"
        raise ValueError(f"the folder {place} has no text files; looked for are {allowed}")
    return [CorpusFile(name, place / name, name.partition("/")[0] if "/" in name else None) for name in found]


def folder_files(folder: Path) -> tuple[list[str], list[str]]:
    """The files below a folder that are read and those that are not, by their paths from there."""
    every = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    texts = [name for name in every if ending_of(Path(name)) in TEXT_ENDINGS]
    chosen = texts or [name for name in every if ending_of(Path(name)) in TABLE_ENDINGS]
    read = set(chosen)
    return chosen, [name for name in every if name not in read]


def skipped_files(spec: CorpusSpec) -> list[str]:
    """The files in the folders of a corpus that are not read."""
    folders = [place for place in locate(spec) if isinstance(place, Path) and place.is_dir()]
    return [name for folder in folders for name in folder_files(folder)[1]]


def check_ending(path: Path) -> None:
    """Refuse a file that is no text by its ending."""
    ending = ending_of(path)
    if ending in NO_TEXT:
        raise ValueError(f"{path} is no text file ({ending}): {NO_TEXT[ending]}")


def author(source: Source, file: str) -> str | None:
    """The author of a file of a named corpus, if the name of the file has it."""
    return file.partition("-")[0] if source.kind == "gutenberg" and "-" in file else None


def ending_of(path: Path) -> str:
    """The ending of a file's name in lower case, without that of a compression: ".txt" of "A.TXT.gz"."""
    name = path.name.lower()
    unpacked = name[: -len(path.suffix)] if name.endswith(COMPRESSIONS) else name
    return Path(unpacked).suffix


def has_records(path: Path) -> bool:
    """Whether the texts of a file stand under a key or in a column."""
    return ending_of(path) in (".jsonl", *TABLE_ENDINGS)


def has_columns(spec: CorpusSpec) -> bool:
    """Whether a corpus has files whose texts stand under a key or in a column."""
    return any(
        has_records(file.path) for place in locate(spec) if isinstance(place, Path) for file in text_files(place)
    )
