"""A line is a document: of any text file, streamed, with the labels of its file, split as a whole."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from duality.data import readers as textfiles
from duality.data.corpus import encode_corpus, prepare
from duality.data.documents import has_only_lines, identity, read_documents
from duality.data.named import sources
from duality.data.readers import open_bytes
from duality.data.survey import inspect
from duality.files.archives import Package, Source
from duality.tokenizers.specs import Bytes
from duality.tokenizers.tokenizer import ByteTokenizer

LINES = "first é\r\n\n  second \n \t\nthird"
TEXTS = ["first é", "  second ", "third"]


def read(spec: Path) -> list[tuple[str, str, str | None]]:
    """Name, text and label of every document."""
    return [(each.name, "".join(each.pieces), each.label) for each in read_documents(spec, "lines")]


@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)], ids=["plain", "gz", "xz"]
)
def test_every_line_that_is_not_blank_is_a_document(
    ending: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(pack(LINES.encode()))
    assert read(path) == [(f"{path}:{number}", text, None) for number, text in zip((1, 3, 5), TEXTS, strict=True)]
    assert len(list(read_documents(path))) == 1


def test_lines_have_the_label_of_their_file_and_jsonl_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "x\ny", "label": "bad"}) + "\n")
    assert read(tmp_path) == [
        ("b.jsonl:1", "x\ny", "bad"),
        ("good/a.txt:1", "one", "good"),
        ("good/a.txt:2", "two", "good"),
    ]


def test_lines_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million lines, ten are asked for: the rest of the file is not read, nor held in memory."""
    path = tmp_path / "many.txt"
    path.write_bytes(b"line\n" * 1_000_000)
    opened: list[IO[bytes]] = []

    @contextmanager
    def watched(found: Path) -> Iterator[tuple[IO[bytes], int]]:
        with open_bytes(found) as (stream, mark):
            opened.append(stream)
            yield stream, mark

    monkeypatch.setattr(textfiles, "open_bytes", watched)
    lines = textfiles.read_records(path)
    assert [next(lines) for _ in range(10)][-1] == (10, "line", None)
    assert opened[0].tell() == 50
    assert sum(1 for _ in lines) == 999_990
    assert opened[0].closed


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"good\nba\0d\n", "a NUL byte at byte 7"),
        (b"good\n\xc3\xa9\xff\n", "no UTF-8 at byte 7"),
        (b"good\n\xc3", "no UTF-8 at byte 5"),
    ],
)
def test_a_file_that_is_not_text_names_the_byte(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"a.txt is not text: {problem}; give a UTF-8 text file"):
        read(path)


def test_the_rule_is_part_of_the_key_of_the_cache(tmp_path: Path) -> None:
    path, cache = tmp_path / "a.txt", tmp_path / "cache"
    path.write_text("".join(f"line {number}\n" for number in range(40)))
    whole, lines = (encode_corpus(path, ByteTokenizer(), documents=rule, cache=cache) for rule in ("auto", "lines"))
    assert (whole.num_documents, lines.num_documents) == (1, 40)
    assert whole.folder != lines.folder
    text = path.read_text().replace("\n", "<|endoftext|>")
    assert ByteTokenizer().decode(lines[:]) == text
    parts = [prepare(path, Bytes(), documents=rule, cache=cache, validation=0.1) for rule in ("auto", "lines")]
    assert parts[0].train.folder != parts[1].train.folder
    # a line is never cut in two, however few there are
    assert [part.num_documents for part in (parts[1].train, parts[1].validation)] == [36, 4]
    assert ByteTokenizer().decode(parts[1].train[:]) + ByteTokenizer().decode(parts[1].validation[:]) == text


def test_few_lines_may_still_be_split_by_position(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one two three four\n" * 3)
    prepared = prepare(path, Bytes(), documents="lines", split="position", validation=0.3, cache=tmp_path / "cache")
    assert ByteTokenizer().decode(prepared.validation[:]) == " four<|endoftext|>" * 3


def test_a_source_says_itself_that_a_line_is_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "list.txt"
    path.write_text("one\ntwo\nthree\nfour\n")
    package = Package("list==1", "list.whl", "0" * 64, 1)
    source = Source("a-list", "a list", "MIT", package, {}, "plain", 0.1, documents="lines")
    monkeypatch.setitem(sources(), "a-list", source)
    monkeypatch.setattr("duality.data.documents.fetch", lambda *_, **__: [path])
    assert ["".join(each.pieces) for each in read_documents("a-list")] == ["one", "two", "three", "four"]
    found = inspect("a-list")
    assert (found.files, found.size.num_bytes, found.size.num_documents) == (("list.txt",), 15, 4)
    assert found.examples == ("one", "two", "three")
    assert has_only_lines("a-list")
    assert not has_only_lines(["a-list", str(path)])
    assert has_only_lines(["a-list", str(path)], "lines")
    assert not has_only_lines("austen")


def test_the_rule_of_a_source_identifies_its_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    austen = sources()["austen"]
    whole = identity("austen")
    by_line = Source(
        austen.name, austen.title, austen.license, austen.package, austen.members, austen.kind, 2.0, "lines"
    )
    monkeypatch.setitem(sources(), "austen", by_line)
    assert [part[:2] for part in identity("austen")] == whole
    assert identity("austen") != whole


def test_an_unknown_rule(tmp_path: Path) -> None:
    wrong: Any = "words"
    for call in (read_documents, lambda spec, rule: prepare(spec, Bytes(), documents=rule, cache=tmp_path)):
        with pytest.raises(ValueError, match="a document is 'auto' or 'lines'; got 'words'"):
            call("austen", wrong)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.csv"])
def test_a_line_that_is_too_long_for_the_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of some kilobytes may unpack to gigabytes without a line end."""
    monkeypatch.setattr(textfiles, "_LONGEST", 1000)
    path, first = tmp_path / name, {"a.jsonl": '{"text": "one"}', "a.csv": "text"}.get(name, "one")
    for length in (900, 5000):
        long = f'{{"text": "{"a" * length}"}}' if name == "a.jsonl" else "a" * length
        data = f"{first}\n{long}".encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        if length < 1000:
            assert len(read(path)[-1][1]) == length
        else:
            with pytest.raises(ValueError, match=r"line 2: more than 1,000 bytes; write its text as several lines"):
                read(path)
