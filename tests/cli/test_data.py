"""The command `data`: what is there, and what one corpus is."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from duality.cli.data import _excerpt
from duality.cli.main import main
from duality.data.named import sources
from duality.files import DocumentRule
from duality.files.archives import Member, Package, Source

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
        monkeypatch.setitem(sources(), name, source)
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
    names = [line.partition(":")[0] for line in lines]
    assert names[:5] == ["gutenberg-prose (default)", "austen", "enwik8", "qm9", "moses"]
    assert {"lm1b", "openwebtext", "ptb", "wikitext-103", "text8", "lambada", "ag-news"} <= set(names[5:])
    assert lines[3].endswith("molecules as canonical SMILES, one per line. MIT (the package qm9pack).")


def test_a_corpus_is_prepared_and_its_store_is_shown(
    tmp_path: Path, english: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path))
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    flags = ["--tokenizer", "bytes", "--length", "16", "--no-eos", "--workers", "2"]
    assert main(["data", "prepare", str(english), *flags]) == 0
    first = capsys.readouterr().out
    (store,) = (path for path in (tmp_path / "stores").iterdir() if not path.name.startswith("."))
    assert str(store) in first
    assert main(["data", "show", str(store), "--recipe", "duo-laptop", "--set", "data.length=16"]) == 0
    again = capsys.readouterr().out
    lines = [line for line in first.splitlines() if line.startswith("  ")]
    assert lines == [line for line in again.splitlines() if line.startswith("  ")]
    assert len([line for line in lines if "sha256" in line]) == 2
    # the training that needs these tokens finds them
    session = ["--dry-run", "--set", "data.tokenizer=bytes", "data.length=16", "data.eos=false"]
    assert main(["train", "duo-laptop", "--data", str(english), "--out", str(tmp_path / "run"), *session]) == 0
    assert [path for path in (tmp_path / "stores").iterdir() if not path.name.startswith(".")] == [store]
    shard = store / "train" / "shard-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    assert main(["data", "show", str(store)]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_an_unknown_corpus_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "qm10"]) == 2
    assert "no named corpus 'qm10': did you mean qm9" in capsys.readouterr().err


def test_long_lines_are_excerpted() -> None:
    assert _excerpt("a" * 80) == "a" * 80
    assert _excerpt("a" * 81) == "a" * 79 + "…"


def test_a_folder_is_shown_with_what_is_read_and_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"body": "One\\n\\u001b[31mtext."}\n{"body": "é' + "x" * 99 + '"}\n')
    (folder / "below" / "b.txt").write_text("Three.\n" * 9)
    for name in ("c.csv", "d.json", "below/e.png"):
        (folder / name).write_text("?")
    assert main(["data", "show", str(folder), "--key", "body"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"corpus     {folder}",
        "files      2 read",
        "           3 files are not read: below/e.png, c.csv, d.json",
        "documents  3",
        "text       177 characters, 178 bytes",
        "tokens     181 if every byte is one (data.tokenizer=bytes)",
        "examples   One [31mtext.",
        f"           é{'x' * 78}…",
        "           Three. Three. Three. Three. Three. Three. Three. Three. Three.",
    ]


def test_a_recipe_adds_its_tokens_and_epochs(novel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["data.tokenizer=bytes", "data.length=100", "training.batch_size=10", "training.steps=50"]
    assert main(["data", "show", str(novel), "--recipe", "duo-laptop", "--set", *changes]) == 0
    lines = capsys.readouterr().out.splitlines()
    size = novel.stat().st_size
    assert lines[-2].startswith("recipe     1 document (")
    train, held_out = (int(lines[-2].split("(")[part].split()[0].replace(",", "")) for part in (1, 2))
    assert train + held_out == size + 2
    rows = -(-train // 100)
    epochs = f"{500 / rows:.3g}"
    assert lines[-1].strip() == f"50 steps of 10 sequences are {epochs} epochs of the {rows:,} sequences of 100 tokens"


def test_a_named_corpus_is_shown(known: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", "tale-lines"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "documents  4" in lines
    assert (known / "sources" / "tale-lines" / "tale.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "nothing to show: give a file, a folder or a named corpus"),
        (["show", "austin"], "did you mean austen"),
        (["show", "austen", "--set", "data.tokenizer=bytes"], "name one with --recipe"),
        (["show", "austen", "--recipe", "duo-labtop"], "did you mean duo-laptop"),
        (["list", "--recipe", "duo-laptop"], "belong to `duality data show`"),
        (["get", "austen", "--column", "x"], "belong to `duality data show`"),
    ],
)
def test_wrong_requests(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *arguments]) == 2
    assert message in capsys.readouterr().err
