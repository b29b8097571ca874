"""SMILES, molecules as text: read from CSV tables, made canonical, in an order without meaning.

    tables  --column SMILES-->  OC(C)C  --RDKit-->  CC(C)O, the canonical form  --no repeats, sorted by hash-->  lines

A molecule has many SMILES and one canonical form, which RDKit computes. RDKit is an optional package (the extra
``molecules``) and is imported only here, when a corpus is made.

What must hold: the same tables and the same RDKit give the same text; each molecule is in it once; the order depends on
the strings alone (their sha256), neither on the order of the tables, which is often by size, nor on the version of
Python: a part of the lines is a fair sample of all.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import IO

from duality.files.progress import Reporter

COLUMN = "SMILES"
# The release that wrote the text whose checksum is pinned (corpora.json); 2026.03.6 writes the same. Releases up to
# 2026.03.1 take 12 rings of nine atoms in QM9 for aromatic, and write "c1ccccoccc1" for "C1=CC=COC=CC=C1".
RDKIT = "2026.09.1"
INSTALL = 'pip install "diffusion-duality[molecules]"'


def rdkit(module: str = "rdkit") -> ModuleType:
    """RDKit, or one of its modules; an error with the remedy if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"molecules need RDKit, which cannot be imported ({error}); install it: {INSTALL}") from None


def canonical_lines(tables: Iterable[IO[bytes]], progress: Reporter) -> str:
    """The canonical SMILES of all tables, one per line; each molecule once, in the order of their hashes."""
    found: set[str] = set()
    with rdkit("rdkit.rdBase").BlockLogs():  # which would be remarks on single molecules
        for number, (where, text) in enumerate(_rows(tables), 1):
            found.add(_make_canonical(text, where))
            if number % 25_000 == 0:
                progress(f"{number:,} SMILES made canonical")
    by_hash = sorted(found, key=lambda text: hashlib.sha256(text.encode("utf-8")).hexdigest())
    return "".join(f"{text}\n" for text in by_hash)


def _make_canonical(text: str, where: str) -> str:
    """The canonical form of a SMILES; one that is no molecule is an error."""
    chem = rdkit("rdkit.Chem")
    molecule = chem.MolFromSmiles(text)
    if molecule is None:
        raise ValueError(f"{where}: RDKit {version()} reads no molecule in the SMILES {text!r}; report this as a bug")
    return str(chem.MolToSmiles(molecule))


def _rows(tables: Iterable[IO[bytes]]) -> Iterator[tuple[str, str]]:
    """A place for messages and the SMILES of each row of the tables."""
    for number, stream in enumerate(tables, 1):
        with io.TextIOWrapper(stream, "utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            if COLUMN not in (reader.fieldnames or ()):
                raise ValueError(
                    f"table {number} has no column {COLUMN}, only {reader.fieldnames}; report this as a bug"
                )
            for row in reader:
                yield f"table {number}, line {reader.line_num}", row[COLUMN]


def version() -> str:
    """The version of RDKit that is installed."""
    return str(rdkit().__version__)


def explain_other_text() -> str:
    """Why the canonical text may differ from the pinned one, and the remedy."""
    return (
        f"RDKit {version()}, which is installed, writes other canonical SMILES than RDKit {RDKIT}, with which the "
        f'checksum was made: install that one (pip install "rdkit=={RDKIT}") and fetch again'
    )
