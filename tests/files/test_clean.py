"""`duality data clean`: shows what the cache holds, removes only that, and only if told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from duality.cli.main import main
from duality.data.corpus import prepare
from duality.files.atomic import _temporary_name
from duality.tokenizers.specs import Bytes


@pytest.fixture
def cache(tmp_path: Path, novel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with something of most kinds, and folders that processes were writing: this one, and a dead one."""
    root = tmp_path / "cache"
    monkeypatch.setenv("DUALITY_CACHE", str(root))
    prepare(novel, Bytes())
    for path in ("archives/tale-1.0-py3-none-any.whl", "sources/tale/tale.txt", "judges/small/weights.gguf"):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_bytes(bytes(2_000_000))
    _temporary_name(root / "stores" / "x").mkdir()
    owner = _temporary_name(root / "stores" / "x").name
    host, pid, start, token = owner.rpartition(".")[2].split("-")
    (root / "stores" / f".partial-x.{host}-{pid}-{int(start) + 1}-{token}").mkdir()
    return root


def tree(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def test_nothing_is_removed_without_yes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(cache)
    for arguments in ((), ("stores",)):
        assert main(["data", "clean", *arguments]) == 0
        assert tree(cache) == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(cache)
    assert [line.split()[0] for line in lines[1:7]] == [
        *("archives", "sources", "tokenizers", "judges", "molecules", "stores")
    ]
    assert lines[1].split()[1:5] == ["1", "entry", "2.0", "MB"]
    assert lines[3].split()[1:5] == ["0", "entries", "0.0", "MB"]
    assert lines[6].split()[1:3] == ["2", "entries"]
    assert lines[6].endswith("tokenized corpora; 1 more being written")
    assert "remove it: duality data clean --yes; one kind: duality data clean KIND --yes" in lines
    assert lines[-1] == "remove it: duality data clean stores --yes"


def test_one_kind_is_removed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(cache)
    assert main(["data", "clean", "stores", "--yes"]) == 0
    assert "removed" in capsys.readouterr().out
    left = {name for name in tree(cache) if name.startswith("stores/")}
    assert len(left) == 1  # what this process is writing
    assert tree(cache) - left == {name for name in before if not name.startswith("stores/")}


def test_all_is_removed(cache: Path, novel: Path) -> None:
    assert main(["data", "clean", "--yes"]) == 0
    assert {name.split("/")[0] for name in tree(cache)} == {"archives", "sources", "judges", "stores"}
    assert len(tree(cache)) == 5
    assert len(prepare(novel, Bytes()).train) > 1000
    assert novel.exists()


@pytest.mark.parametrize(
    "foreign",
    [
        *("thesis.txt", "photos/1.jpg", "archives/letters/1.txt", "archives/notes.txt", "stores/mine/x"),
        *("sources/mine/src/main.c", "molecules/water.txt"),
    ],
)
def test_a_folder_that_holds_anything_else_is_refused(
    foreign: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cache / foreign
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    before = tree(cache)
    assert main(["data", "clean", "--yes"]) == 2
    message = capsys.readouterr().err
    assert f"{cache} does not look like a cache folder" in message
    assert "DUALITY_CACHE" in message
    assert tree(cache) == before


def test_links_are_not_followed(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = tmp_path / "outside" / "texts"
    outside.mkdir(parents=True)
    (outside / "mine.txt").write_text("mine")
    (cache / "tokenizers").symlink_to(outside.parent)
    assert main(["data", "clean", "--yes"]) == 2
    (cache / "tokenizers").unlink()
    (cache / "sources" / "linked").symlink_to(outside)
    assert main(["data", "clean", "--yes"]) == 2
    (cache / "sources" / "linked").unlink()
    (cache / "sources" / "tale" / "linked.txt").symlink_to(outside / "mine.txt")
    assert main(["data", "clean", "--yes"]) == 0
    assert (outside / "mine.txt").read_text() == "mine"
    assert "linked" in capsys.readouterr().err


def test_wrong_words(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(cache)
    assert main(["data", "clean", "store", "--yes"]) == 2
    assert "no kind 'store': did you mean stores" in capsys.readouterr().err
    assert main(["data", "list", "--yes"]) == 2
    assert "--yes belongs to `duality data clean`" in capsys.readouterr().err
    assert tree(cache) == before


def test_a_cache_that_is_not_there_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path / "none"))
    assert main(["data", "clean", "--yes"]) == 0
    assert "0.0 MB removed" in capsys.readouterr().out
    (tmp_path / "none").write_text("a file")
    assert main(["data", "clean"]) == 2
    assert "is no folder: set DUALITY_CACHE" in capsys.readouterr().err
