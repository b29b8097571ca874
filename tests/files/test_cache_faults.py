"""Every write, flush and rename of a preparation fails once: what was there stays, and the next attempt succeeds."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from support.faults import faults

from duality.cli.main import _explain, main
from duality.data.corpus import Corpus, prepare
from duality.files.cache import cache_errors, verify
from duality.tokenizers.specs import BPE, Bytes


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"Text {number}, which is short.\n" * 40)
    return folder


def ids(corpus: Corpus) -> tuple[list[int], list[int]]:
    return corpus.train[:].tolist(), corpus.validation[:].tolist()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["disk full", "input/output error"])
def test_a_preparation_that_fails_anywhere_can_be_repeated(number: int, texts: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    before = prepare(texts, Bytes(), cache=cache).train.folder.parent
    kept = {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}
    with faults(cache) as tally:
        made = prepare(texts, BPE(270), cache=cache)
    expected, folder = ids(made), made.train.folder.parent
    assert tally.count > 30
    failed = 0
    for place in range(1, tally.count + 1):
        shutil.rmtree(folder)
        with faults(cache, place, number):
            try:
                assert ids(prepare(texts, BPE(270), cache=cache)) == expected  # a record that is not kept is no error
            except OSError as error:
                failed += 1
                message = _explain(error) or ""
                assert "\n" not in message
                assert "DUALITY_CACHE" in message
                assert str(cache) in message
                assert ("is full" in message and "needs up to" in message) == (number == errno.ENOSPC)
        names = {path.name for path in (cache / "stores").iterdir()}
        assert names <= {before.name, folder.name}  # complete or absent
        assert all(path.read_bytes() == content for path, content in kept.items())
        if folder.exists():
            verify(folder)
        with faults(cache):
            assert ids(prepare(texts, BPE(270), cache=cache)) == expected
    assert failed > tally.count // 2


def test_a_cache_that_is_a_file_names_the_variable(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/cache"):
        monkeypatch.setenv("DUALITY_CACHE", str(tmp_path / place))
        for arguments in (["train", "duo-laptop", "--data", str(texts)], ["data", "get", "gutenberg-prose"]):
            assert main([*arguments, *(["--out", str(tmp_path / "run")] if arguments[0] == "train" else [])]) == 2
            message = capsys.readouterr().err.splitlines()[-1]
            assert f"the cache folder {tmp_path / place}" in message
            assert "set DUALITY_CACHE to another folder" in message
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EROFS, "Read-only file system"),
        (errno.EACCES, "Permission denied"),
        (errno.ENOSPC, "is full: the test needs 3 MB, and "),
        (errno.EDQUOT, "is full: the test needs 3 MB, and "),
    ],
)
def test_errors_of_the_cache_say_what_to_do(number: int, words: str, tmp_path: Path) -> None:
    for name in (str(tmp_path / "cache" / "stores"), str(tmp_path), None):
        with (
            pytest.raises(OSError, match=words) as caught,
            cache_errors(tmp_path / "cache", "the test", lambda: "3 MB"),
        ):
            raise OSError(number, "Read-only file system" if number == errno.EROFS else "Permission denied", name)
        assert "DUALITY_CACHE" in (_explain(caught.value) or "")
        assert f"the cache folder {tmp_path / 'cache'}" in (_explain(caught.value) or "")


def test_errors_about_other_files_pass_unchanged(tmp_path: Path) -> None:
    mine = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "corpus.txt"))
    with pytest.raises(PermissionError) as caught, cache_errors(tmp_path / "cache", "the test", lambda: "3 MB"):
        raise mine
    assert caught.value is mine
