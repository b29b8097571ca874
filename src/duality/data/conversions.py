"""Conversions: how the files in the package of a named source become the text of a corpus.

Books of Project Gutenberg become plain text without typesetting. They have hard line breaks at about 70 columns, blank
lines between paragraphs, a title in brackets in the first line and, in one of them, the licence of the file at the end.
A language model should learn to write prose, not the line breaks of an edition, so a paragraph becomes one line:

    [Emma by Jane Austen 1816]          ->      CHAPTER I
                                                Emma Woodhouse, handsome, clever, and rich, with ...
    CHAPTER I

    Emma Woodhouse, handsome, clever,
    and rich, with ...

Molecules, SMILES as text, are read from CSV tables, made canonical, and put into an order without meaning:

    tables  --column SMILES-->  OC(C)C  --RDKit-->  CC(C)O, the canonical form  --no repeats, sorted by hash-->  lines

A molecule has many SMILES and one canonical form, which RDKit computes. RDKit is an optional package (the extra
``molecules``) and is imported only here, when a corpus is made.

What must hold: apart from the title line, the licence and white space, no character of a book is added, lost or
changed. The same tables and the same RDKit give the same text; each molecule is in it once; the order depends on the
strings alone (their sha256), neither on the order of the tables, which is often by size, nor on the version of Python:
a part of the lines is a fair sample of all.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable
from itertools import groupby
from types import ModuleType
from typing import IO

from duality.extras import import_extra
from duality.files.archives import Conversion
from duality.files.progress import Reporter

COLUMN = "SMILES"
# The release that wrote the text whose checksum is pinned (corpora.json); 2026.03.6 writes the same. Releases up to
# 2026.03.1 take 12 rings of nine atoms in QM9 for aromatic, and write "c1ccccoccc1" for "C1=CC=COC=CC=C1".
RDKIT = "2026.09.1"
LICENCE_STARTS = (
    "End of Project Gutenberg",
    "End of the Project Gutenberg",
    "*** END OF THE PROJECT GUTENBERG",
)


def _clean_book(text: str) -> str:
    """The book with one paragraph per line and single spaces, without the title line and the licence."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    first = next((number for number, line in enumerate(lines) if line), 0)
    if lines[first].startswith("[") and lines[first].endswith("]"):
        lines[first] = ""
    end = next((number for number, line in enumerate(lines) if line.startswith(LICENCE_STARTS)), len(lines))
    paragraphs = ("\n".join(group) for full, group in groupby(lines[:end], key=bool) if full)
    # A line break after a dash or a hyphen is inside a word: "business!--Selina", "to-day".
    return "".join(re.sub(r"(?<!-)\n", " ", paragraph).replace("\n", "") + "\n" for paragraph in paragraphs)


def rdkit(module: str = "rdkit") -> ModuleType:
    """RDKit, or one of its modules; an error with the remedy if it is not installed."""
    return import_extra("molecules", "a text of molecules", module)


def _canonical_lines(tables: Iterable[IO[bytes]], progress: Reporter) -> str:
    """The canonical SMILES of all tables, one per line; each molecule once, in the order of their hashes."""
    chem, found, count = rdkit("rdkit.Chem"), set[str](), 0
    with rdkit("rdkit.rdBase").BlockLogs():  # which would be remarks on single molecules
        for number, stream in enumerate(tables, 1):
            with io.TextIOWrapper(stream, "utf-8", newline="") as lines:
                reader = csv.DictReader(lines)
                if COLUMN not in (reader.fieldnames or ()):
                    raise ValueError(
                        f"table {number} has no column {COLUMN}, only {reader.fieldnames}; report this as a bug"
                    )
                for row in reader:
                    if (molecule := chem.MolFromSmiles(row[COLUMN])) is None:
                        raise ValueError(
                            f"table {number}, line {reader.line_num}: RDKit {rdkit().__version__} reads no molecule in "
                            f"the SMILES {row[COLUMN]!r}; report this as a bug"
                        )
                    found.add(str(chem.MolToSmiles(molecule)))
                    count += 1
                    if count % 25_000 == 0:
                        progress(f"{count:,} SMILES made canonical")
    by_hash = sorted(found, key=lambda text: hashlib.sha256(text.encode("utf-8")).hexdigest())
    return "".join(f"{text}\n" for text in by_hash)


CONVERSIONS = {  # by the kind of the source; the books are Latin-1: all but five of their letters are ASCII
    "gutenberg": Conversion(lambda streams, progress: _clean_book(streams[0].read().decode("latin-1"))),
    "smiles": Conversion(
        _canonical_lines,
        check=rdkit,
        other_text=lambda: (
            f"RDKit {rdkit().__version__}, which is installed, writes other canonical SMILES than RDKit {RDKIT}, with "
            f'which the checksum was made: install that one (pip install "rdkit=={RDKIT}") and fetch again'
        ),
    ),
}
