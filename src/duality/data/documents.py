"""Documents: the parts of a corpus.

A corpus is given as a path, as the name of a source (sources.py), or as a list of them:

    a text file          one document                book.txt, notes.md, any UTF-8 file
                         or one per line             with the rule "lines", blank lines left out
    a .jsonl file        one document per line       the value of the key "text"
    a folder             every .txt, .text, .md and .jsonl file below it, sorted by path

Any of these files may be compressed (.gz, .xz). If a path and a source have the same name, the path is used. The rule
of a corpus is "lines" for all its text files, or "auto": then a named source says for its own files what a document is.

A document may have a label, the class of its text:

    a .jsonl file        the value of the key "label", a string or a whole number (as its digits)
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
from duality.data.sources import SOURCES, DocumentRule, Source, fetch
from duality.data.textfiles import COMPRESSIONS, TextFile, json_texts, text_lines
from duality.registry import suggestion

TEXT_ENDINGS = (".txt", ".text", ".md", ".jsonl")

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
    spec: CorpusSpec, rule: DocumentRule = "auto", *, cache: Path | None = None, progress: Progress = silent
) -> Iterator[Document]:
    """The documents of a corpus; a wrong specification is an error at the call, before the first document."""
    check_rule(rule)
    files = [found for place in locate(spec) for found in text_files(place, cache, progress)]
    if all(file.path.stat().st_size == 0 for file in files):
        raise ValueError(f"the corpus {spec!s} is empty ({len(files)} file(s) of 0 bytes); give one with text in it")
    return (document for file in files for document in documents_of(file, rule))


def check_rule(rule: str) -> None:
    """Refuse a rule that does not exist."""
    if rule not in ("auto", "lines"):
        raise ValueError(f"a document is 'auto' or 'lines'; got {rule!r}")


def all_lines(spec: CorpusSpec, rule: DocumentRule = "auto") -> bool:
    """Whether every document of a corpus is a line of a text file, by the rule or by that of its named sources."""
    return rule == "lines" or all(isinstance(place, Source) and place.documents == "lines" for place in locate(spec))


def documents_of(file: CorpusFile, rule: DocumentRule = "auto") -> Iterator[Document]:
    """The documents of one file."""
    if unpacked_name(file.path).endswith(".jsonl"):
        for number, text, label in json_texts(file.path, file.label):
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
    """What identifies the content of a corpus without reading it: a part of cache keys.

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
            parts.append([str(file.path.resolve()), status.st_size, status.st_mtime_ns, *label])
    return parts


def text_files(place: Path | Source, cache: Path | None = None, progress: Progress = silent) -> list[CorpusFile]:
    """The files of one part of a corpus."""
    if isinstance(place, Source):
        paths = fetch(place.name, cache=cache, progress=progress)
        return [CorpusFile(path.name, path, author(place, path.name), place.documents) for path in paths]
    if not place.is_dir():
        return [CorpusFile(str(place), place)]
    found = [path for path in place.rglob("*") if unpacked_name(path).endswith(TEXT_ENDINGS) and path.is_file()]
    if not found:
        allowed = f"{', '.join(TEXT_ENDINGS)}, and these followed by {' or '.join(COMPRESSIONS)}"
        raise ValueError(f"the folder {place} has no text files; looked for are {allowed}")
    names = sorted((path.relative_to(place).as_posix(), path) for path in found)
    return [CorpusFile(name, path, name.partition("/")[0] if "/" in name else None) for name, path in names]


def author(source: Source, file: str) -> str | None:
    """The author of a file of a named corpus, if the name of the file has it."""
    return file.partition("-")[0] if source.kind == "gutenberg" and "-" in file else None


def unpacked_name(path: Path) -> str:
    """The file's name in lower case, without the ending of a compression."""
    name = path.name.lower()
    return name[: -len(path.suffix)] if name.endswith(COMPRESSIONS) else name
