"""A prepared corpus in the cache: every change of its files is found before it is used, and finding none is quick."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from duality.data.corpus import Corpus, encode_corpus, prepare
from duality.files import cache as cache_module
from duality.files.atomic import file_sha256
from duality.tokenizers.specs import BPE, Characters
from duality.tokenizers.tokenizer import ByteTokenizer, CharTokenizer


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty cache folder."""
    return tmp_path / "cache"


@pytest.fixture
def fine_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system whose times are exact: a file is old enough to be recorded at once."""
    monkeypatch.setattr(cache_module, "CLOCK_STEP", 0)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose checksums are computed."""
    names: list[str] = []

    def counted(path: Path) -> str:
        names.append(path.name)
        return file_sha256(path)

    monkeypatch.setattr(cache_module, "file_sha256", counted)
    return names


def ids(prepared: Corpus) -> tuple[list[int], list[int]]:
    return prepared.train[:].tolist(), prepared.validation[:].tolist()


def folder_of(cache: Path) -> Path:
    """The only prepared corpus."""
    (folder,) = (cache / "stores").iterdir()
    return folder


def overwrite(path: Path) -> None:
    """Other ids of the same number."""
    path.write_bytes(np.full(path.stat().st_size // 2, 7, dtype="<u2").tobytes())


def other_alphabet(path: Path) -> None:
    """Another tokenizer whose file has the same size."""
    alphabet = json.loads(path.read_text())["alphabet"]
    CharTokenizer("".join(sorted(set(alphabet) - {"z"} | {"~"}))).save(path.parent)


def swap(folder: Path) -> None:
    """Training text for validation."""
    (folder / "train").rename(folder / "x")
    (folder / "validation").rename(folder / "train")
    (folder / "x").rename(folder / "validation")


def a_file_instead(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


def more_characters(path: Path) -> None:
    """A count that only the bits per character depend on."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "num_characters": content["num_characters"] + 1}, indent=1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: overwrite(folder / "validation" / "shard-00000.bin"), "shard-00000.bin is damaged: its sha256"),
        (lambda folder: overwrite(folder / "train" / "documents.bin"), "documents.bin is damaged: its sha256"),
        (lambda folder: other_alphabet(folder / "tokenizer.json"), "tokenizer.json is damaged: its sha256"),
        (lambda folder: more_characters(folder / "train" / "index.json"), "index.json is damaged"),
        (lambda folder: swap(folder), "is damaged"),
        (lambda folder: (folder / "train" / "index.json").unlink(), "index.json is missing"),
        (lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff"), "tokenizer.json is damaged: 1 bytes, not"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text("[" * 100_000), "manifest.json is damaged"),
        (lambda folder: (folder / "manifest.json").write_text('{"name": 1}'), "manifest.json is damaged"),
        (lambda folder: shutil.rmtree(folder / "train"), "is missing"),
        (lambda folder: a_file_instead(folder), "is no folder"),
    ],
)
@pytest.mark.usefixtures("fine_clock")
def test_a_changed_corpus_is_made_again(change: Callable[[Path], object], words: str, cache: Path, novel: Path) -> None:
    novel.write_text(novel.read_text() + "".join(f"A zebra, {number}.\n" for number in range(2000)))
    first = prepare(novel, Characters(), cache=cache)
    expected = ids(first)
    time.sleep(0.02)
    prepare(novel, Characters(), cache=cache)  # from the record
    change(folder_of(cache))
    messages: list[str] = []
    again = prepare(novel, Characters(), cache=cache, progress=messages.append)
    assert ids(again) == expected
    assert again.tokenizer == first.tokenizer
    assert words in messages[0]
    assert messages[0].endswith("it is prepared again")
    assert prepare(novel, Characters(), cache=cache, progress=pytest.fail).tokenizer == first.tokenizer


def test_one_corpus_in_the_place_of_another_is_found(cache: Path, novel: Path) -> None:
    one = encode_corpus(novel, ByteTokenizer(), cache=cache)
    expected = one[:].tolist()
    other = novel.with_name("other.txt")
    other.write_text(novel.read_text().upper())
    wrong = encode_corpus(other, ByteTokenizer(), cache=cache)
    shutil.rmtree(one.folder.parent)
    wrong.folder.parent.rename(one.folder.parent)
    messages: list[str] = []
    assert encode_corpus(novel, ByteTokenizer(), cache=cache, progress=messages.append)[:].tolist() == expected
    assert "is damaged" in messages[0]


@pytest.mark.usefixtures("fine_clock")
def test_what_was_verified_is_not_read_again(cache: Path, novel: Path, hashed: list[str]) -> None:
    prepare(novel, BPE(300), cache=cache)
    time.sleep(0.02)
    prepare(novel, BPE(300), cache=cache)
    hashed.clear()
    prepare(novel, BPE(300), cache=cache)
    assert hashed == []
    path = folder_of(cache) / "train" / "shard-00000.bin"
    path.touch()
    prepare(novel, BPE(300), cache=cache, progress=pytest.fail)
    assert hashed == ["shard-00000.bin"]


@pytest.mark.usefixtures("fine_clock")
@pytest.mark.parametrize("how", ["in place", "another file"])
def test_a_time_of_change_that_was_put_back_hides_nothing(how: str, cache: Path, novel: Path) -> None:
    expected = ids(prepare(novel, BPE(300), cache=cache))
    time.sleep(0.02)
    prepare(novel, BPE(300), cache=cache)
    path = folder_of(cache) / "validation" / "shard-00000.bin"
    before = path.stat()
    if how == "another file":
        path.rename(path.with_name("old"))
        shutil.copy(path.with_name("old"), path)
    overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    messages: list[str] = []
    assert ids(prepare(novel, BPE(300), cache=cache, progress=messages.append)) == expected
    assert "its sha256 has changed" in messages[0]


def test_a_file_that_was_written_a_moment_ago_is_not_recorded(cache: Path, novel: Path, hashed: list[str]) -> None:
    """A second change within one step of the file system's clock would have the same time."""
    prepare(novel, BPE(300), cache=cache)
    prepare(novel, BPE(300), cache=cache)
    hashed.clear()
    prepare(novel, BPE(300), cache=cache)
    assert {"tokenizer.json", "index.json", "shard-00000.bin"} <= set(hashed)


@pytest.mark.usefixtures("fine_clock")
@pytest.mark.parametrize("record", [b"", b"{}", b"[]", b"null", b"\xff", b'{"files": 3}', b'{"tokenizer.json": {}}'])
def test_a_damaged_record_is_ignored(record: bytes, cache: Path, novel: Path) -> None:
    expected = ids(prepare(novel, BPE(300), cache=cache))
    (folder_of(cache) / cache_module.RECORD).write_bytes(record)
    overwrite(folder_of(cache) / "train" / "shard-00000.bin")
    assert ids(prepare(novel, BPE(300), cache=cache)) == expected


@pytest.mark.usefixtures("fine_clock")
def test_a_cache_that_cannot_be_written_is_verified_each_time(cache: Path, novel: Path, hashed: list[str]) -> None:
    prepare(novel, BPE(300), cache=cache)
    record = folder_of(cache) / cache_module.RECORD
    record.unlink(missing_ok=True)
    record.mkdir()  # like a folder without permissions, for root too
    for _ in range(2):
        hashed.clear()
        prepare(novel, BPE(300), cache=cache, progress=pytest.fail)
        assert "shard-00000.bin" in hashed
    assert [path.name for path in folder_of(cache).iterdir() if path.name.startswith(".")] == [cache_module.RECORD]
