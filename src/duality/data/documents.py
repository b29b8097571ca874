"""Documents: what a corpus is made of.

A corpus is named by a path or by the name of a source (sources.py), or by a list of them:

    a text file          one document               book.txt, notes.md, anything that is UTF-8
    a .jsonl file        one document a line        the value of the key "text"
    a folder             every .txt, .text, .md and .jsonl file below it, sorted by path

Any of these files may be compressed (.gz, .xz). A path that exists wins over a source of the same name.

A document may have a label, which says what kind of text it is:

    a .jsonl file        the value of the key "label", a string or a whole number (as its digits)
    a folder             the first-level subfolder that the file lies in: reviews/good/17.txt is "good"
    a named corpus       the author of a book of Project Gutenberg: austen-emma.txt is "austen"

The label of a line wins over that of its file. A value that is neither string nor number is no label.

What must hold: a document gives its text in pieces, as often as it is asked, so that one larger than memory
is a document like any other; the order of documents depends on their paths alone; no document is dropped, an
empty one neither.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from duality.data.cache import Progress, silent
from duality.data.sources import SOURCES, Source, fetch
from duality.data.textfiles import COMPRESSIONS, TextFile, json_texts

TEXT_ENDINGS = (".txt", ".text", ".md", ".jsonl")

CorpusSpec = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Document:
    """A name for messages, the text in pieces that can be run through again and again, and perhaps a label."""

    name: str
    pieces: Iterable[str]
    label: str | None = None

    @property
    def text(self) -> str:
        """The whole text, in memory."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus: its name for messages, where it is, and the label of its documents."""

    name: str
    path: Path
    label: str | None = None


def read_documents(spec: CorpusSpec, *, cache: Path | None = None, progress: Progress = silent) -> Iterator[Document]:
    """The documents of a corpus; a wrong specification is an error at once, not at the first document."""
    files = [found for place in locate(spec) for found in text_files(place, cache, progress)]
    if all(file.path.stat().st_size == 0 for file in files):
        raise ValueError(f"the corpus {spec!s} is empty ({len(files)} file(s) of 0 bytes); give one with text in it")
    return (document for file in files for document in documents_of(file))


def documents_of(file: CorpusFile) -> Iterator[Document]:
    """The documents of one file."""
    if unpacked_name(file.path).endswith(".jsonl"):
        for number, text, label in json_texts(file.path, file.label):
            yield Document(f"{file.name}:{number}", (text,), label)
    else:
        yield Document(file.name, TextFile(file.path), file.label)


def locate(spec: CorpusSpec) -> list[Path | Source]:
    """What each part of a corpus specification means: an existing path, else a named source."""
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
    near = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(
        f"no file, folder or named corpus {name!r}; give a path that exists or one of {', '.join(SOURCES)}{hint}"
    )


def identity(spec: CorpusSpec, *, labels: bool = False) -> list[list[str | int | None]]:
    """What tells one state of a corpus from another, found without reading it: a part of cache keys.

    With labels, those of the files too: the same file has another one if another folder above it is given.
    """
    parts: list[list[str | int | None]] = []
    for place in locate(spec):
        if isinstance(place, Source):
            parts += [[name, member.text_sha256] for name, member in place.members.items()]
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
        return [CorpusFile(path.name, path, author(place, path.name)) for path in paths]
    if not place.is_dir():
        return [CorpusFile(str(place), place)]
    found = [path for path in place.rglob("*") if unpacked_name(path).endswith(TEXT_ENDINGS) and path.is_file()]
    if not found:
        allowed = f"{', '.join(TEXT_ENDINGS)}, and these followed by {' or '.join(COMPRESSIONS)}"
        raise ValueError(f"the folder {place} has no text files; looked for are {allowed}")
    names = sorted((path.relative_to(place).as_posix(), path) for path in found)
    return [CorpusFile(name, path, name.partition("/")[0] if "/" in name else None) for name, path in names]


def author(source: Source, file: str) -> str | None:
    """Who wrote a file of a named corpus, where its name says so."""
    return file.partition("-")[0] if source.kind == "gutenberg" and "-" in file else None


def unpacked_name(path: Path) -> str:
    """The file's name in small letters, without the ending of a compression."""
    name = path.name.lower()
    return name[: -len(path.suffix)] if name.endswith(COMPRESSIONS) else name
