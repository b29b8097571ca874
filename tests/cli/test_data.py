"""The command `data`: what is there, and what one corpus is."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from duality.cli.data import shortened
from duality.cli.main import main
from duality.data.package_index import Package
from duality.data.sources import SOURCES, DocumentRule, Member, Source

TEXT = "one\n\ntwo\n" + "three " * 30 + "\nfour\n"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources of the same text, whole and by lines; their archive lies in the cache."""
    cache = tmp_path / "cache"
    wheel = cache / "archives" / "tale.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tale.txt", TEXT)
    package = Package("tale==1.0", wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest(), 1)
    members = {"tale.txt": Member("tale.txt", hashlib.sha256(TEXT.encode()).hexdigest())}
    rules: dict[str, DocumentRule] = {"tale": "auto", "tale-lines": "lines"}
    for name, rule in rules.items():
        source = Source(name, "a tale", "public domain", package, members, "plain", 0.1, rule)
        monkeypatch.setitem(SOURCES, name, source)
    monkeypatch.setenv("DUALITY_CACHE", str(cache))
    return cache


@pytest.mark.parametrize(
    ("name", "documents"), [("tale", "1, one per file"), ("tale-lines", "4, one per line")], ids=["whole", "lines"]
)
def test_a_corpus_is_fetched_and_described(
    name: str, documents: str, known: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "get", name]) == 0
    output = capsys.readouterr()
    path = known / "sources" / name / "tale.txt"
    assert output.out.splitlines() == [
        f"{name}: a tale",
        "licence    public domain",
        "size       0.0 MB in 1 file",
        f"documents  {documents}",
        f"files      {path}",
        "examples   one",
        "           two",
        f"           {('three ' * 30)[:79]}…",
    ]
    assert path.read_text() == TEXT
    assert "extracting" in output.err


def test_corpora_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["gutenberg-prose (default)", "austen", "enwik8", "qm9"]
    assert lines[-1].endswith("molecules as canonical SMILES, one per line. MIT (the package qm9pack).")


def test_an_unknown_corpus_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "qm10"]) == 2
    assert "no named corpus 'qm10': did you mean qm9" in capsys.readouterr().err


def test_long_lines_are_shortened() -> None:
    assert shortened("a" * 80) == "a" * 80
    assert shortened("a" * 81) == "a" * 79 + "…"
