"""Documents: what a corpus is made of.

A corpus is named by a path or by the name of a source (sources.py), or by a list of them:

    a text file          one document               book.txt, notes.md, anything that is UTF-8
    a .jsonl file        one document a line        the value of the key "text"
    a folder             every .txt, .text, .md and .jsonl file below it, sorted by path

Any of these files may be compressed (.gz, .xz). A path that exists wins over a source of the same name.

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
    """A name for messages, and the text in pieces that can be run through again and again."""

    name: str
    pieces: Iterable[str]

    @property
    def text(self) -> str:
        """The whole text, in memory."""
        return "".join(self.pieces)


def read_documents(spec: CorpusSpec, *, cache: Path | None = None, progress: Progress = silent) -> Iterator[Document]:
    """The documents of a corpus; a wrong specification is an error at once, not at the first document."""
    files = [found for place in locate(spec) for found in text_files(place, cache, progress)]
    if all(path.stat().st_size == 0 for _, path in files):
        raise ValueError(f"the corpus {spec!s} is empty ({len(files)} file(s) of 0 bytes); give one with text in it")
    return (document for name, path in files for document in documents_of(name, path))


def documents_of(name: str, path: Path) -> Iterator[Document]:
    """The documents of one file."""
    if unpacked_name(path).endswith(".jsonl"):
        for number, text in json_texts(path):
            yield Document(f"{name}:{number}", (text,))
    else:
        yield Document(name, TextFile(path))


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


def identity(spec: CorpusSpec) -> list[list[str | int]]:
    """What tells one state of a corpus from another, found without reading it: a part of cache keys."""
    parts: list[list[str | int]] = []
    for place in locate(spec):
        if isinstance(place, Source):
            parts += [[name, member.text_sha256] for name, member in place.members.items()]
            continue
        for _, path in text_files(place):
            status = path.stat()
            parts.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    return parts


def text_files(place: Path | Source, cache: Path | None = None, progress: Progress = silent) -> list[tuple[str, Path]]:
    """The files of one part of a corpus, each with its name for messages."""
    if isinstance(place, Source):
        return [(path.name, path) for path in fetch(place.name, cache=cache, progress=progress)]
    if not place.is_dir():
        return [(str(place), place)]
    found = [path for path in place.rglob("*") if unpacked_name(path).endswith(TEXT_ENDINGS) and path.is_file()]
    if not found:
        allowed = f"{', '.join(TEXT_ENDINGS)}, and these followed by {' or '.join(COMPRESSIONS)}"
        raise ValueError(f"the folder {place} has no text files; looked for are {allowed}")
    return sorted((path.relative_to(place).as_posix(), path) for path in found)


def unpacked_name(path: Path) -> str:
    """The file's name in small letters, without the ending of a compression."""
    name = path.name.lower()
    return name[: -len(path.suffix)] if name.endswith(COMPRESSIONS) else name
