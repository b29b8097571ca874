"""Columns, keys, byte order marks, and files that are no text: what is read of a file, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duality.data.corpus import encode_corpus, prepare
from duality.data.documents import identity, list_skipped, read_documents
from duality.data.readers import read_pieces
from duality.tokenizers.specs import Bytes
from duality.tokenizers.tokenizer import ByteTokenizer

MARK = b"\xef\xbb\xbf"
CSV = 'id,abstract,label\r\n1,"first, with\na line end and ""quotes""",good\r\n\r\n2,second é,\r\n'


def texts(path: Path, column: str = "text") -> list[str]:
    """The text of every document."""
    return ["".join(document.pieces) for document in read_documents(path, column=column)]


def written(path: Path, content: str | bytes) -> Path:
    """A file with this content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_column_of_a_csv_file_is_read_with_labels_and_line_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", CSV)
    found = [(each.name, "".join(each.pieces), each.label) for each in read_documents(path, column="abstract")]
    assert found == [
        (f"{path}:2", 'first, with\na line end and "quotes"', "good"),
        (f"{path}:5", "second é", None),
    ]


VALUES = st.text(
    st.one_of(st.sampled_from(',"\t\r\n é'), st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6), ending=st.sampled_from([".csv", ".tsv"]))
def test_any_text_that_the_csv_module_writes_is_read_back(
    rows: list[tuple[str, str]], ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"any{ending}"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t" if ending == ".tsv" else ",")
        writer.writerows([("note", "text"), *rows])
    assert texts(path) == [text for _, text in rows]
    assert texts(path, "note") == [note for note, _ in rows]


def test_a_tsv_file_has_tabs_and_may_be_compressed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv.gz", gzip.compress(b"id\ttext\n1\tone, two\n2\t\n"))
    assert texts(path) == ["one, two", ""]


def test_a_value_may_be_long(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"text\n{'word ' * 60_000}\n")
    assert texts(path) == ["word " * 60_000]


def test_a_key_of_a_jsonl_file(tmp_path: Path) -> None:
    lines = [{"abstract": "one", "text": "no", "label": 3}, {"abstract": "two"}]
    path = written(tmp_path / "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert texts(path, "abstract") == ["one", "two"]
    assert [each.label for each in read_documents(path, column="abstract")] == ["3", None]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "id,abstract\n1,x\n",
            r"a.csv has no column 'text': its columns are 'id', 'abstract'; choose one with --column",
        ),
        ("id;text\n1;x\n", r"no column 'text': its columns are 'id;text'; .* put commas between the columns"),
        ("text,text\n1,x\n", r"has the column 'text' twice"),
        ("id,text\n1,x\n2\n", r"a.csv, line 3: 1 value\(s\), but the first row names 2 columns"),
        ("id,text\n1,x,y\n", r"a.csv, line 2: 3 value\(s\)"),
        ('id,text\n1,"x\ny\n', r"a.csv, line 3: not CSV \(unexpected end of data\)"),
        ('id,text\n1,"x"y\n', r"a.csv, line 2: not CSV"),
        (b"id,text\n1,\xff\n", r"a.csv is not text: no UTF-8 at byte 10"),
        (b"id,text\n1,\0\n", r"a.csv is not text: a NUL byte at byte 10"),
        ("\n\n", "a.csv has no first row with the names of its columns"),
    ],
)
def test_a_csv_file_that_cannot_be_read_is_an_error_with_the_place(
    content: str | bytes, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=problem):
        texts(written(tmp_path / "a.csv", content))


def test_a_csv_file_of_column_names_alone_has_no_text(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,text\n")
    assert texts(path) == []
    with pytest.raises(ValueError, match=r"no text in the 0 document\(s\)"):
        encode_corpus(path, ByteTokenizer(), cache=tmp_path / "cache")


def test_a_column_of_a_corpus_without_columns_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "text")
    with pytest.raises(
        ValueError,
        match=r"column 'abstract'.* has no \.jsonl, \.csv or \.tsv file and no other table; leave the column",
    ):
        read_documents(path, column="abstract")


@pytest.mark.parametrize(
    ("value", "kind"),
    [("5", r"a number \(5\)"), ("null", "null"), ("true", r"a truth value \(true\)"), ("[1]", "a list"), ("{}", "an")],
)
def test_a_value_that_is_no_string_is_named(value: str, kind: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", f'{{"text": "ok"}}\n{{"text": {value}}}\n')
    with pytest.raises(ValueError, match=rf"line 2: the value of 'text' is {kind}.*must be a string"):
        texts(path)


def test_a_missing_key_names_the_keys_and_the_option(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", json.dumps({f"k{number:02d}": "x" for number in range(30)}))
    with pytest.raises(
        ValueError, match=r"no 'text' \(got the keys 'k00', .*, 'k09' and 20 more\).*--column"
    ) as caught:
        texts(path)
    assert len(str(caught.value)) < 400


def test_lines_that_json_cannot_hold_name_the_line(tmp_path: Path) -> None:
    for content in ("[" * 100_000, '{"text": "x", "n": ' + "1" * 5000 + "}"):
        with pytest.raises(ValueError, match=r"a\.jsonl, line 1: not JSON"):
            texts(written(tmp_path / "a.jsonl", content))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.json", r"write one JSON object per line into a \.jsonl file"),
        ("a.JSON.gz", r"\.jsonl"),
        ("a.ndjson", r"rename it to \.jsonl"),
        ("a.orc", r"to_parquet"),
        ("a.zip", "unpack it and give the folder"),
        ("a.tar.gz", "unpack it and give the folder"),
        ("a.tgz", "unpack it and give the folder"),
        ("a.txt.lz4", r"compress it as \.gz, \.xz, \.bz2 or \.zst"),
        ("a.pdf", r"save its text as a \.txt file"),
        ("a.docx", r"save its text as a \.txt file"),
        ("a.xlsx", r"save the sheet as a \.csv file"),
    ],
)
def test_a_file_that_is_no_text_by_its_ending_is_refused_before_it_is_read(
    name: str, advice: str, tmp_path: Path
) -> None:
    path = written(tmp_path / name, '{"text": "this would be learnt as it is"}\n' * 100)
    for call in (read_documents, identity, lambda given: prepare(given, Bytes(), cache=tmp_path / "cache")):
        with pytest.raises(ValueError, match=rf"{name} is no text file .*{advice}"):
            call(path)
    assert not (tmp_path / "cache").exists()


def test_a_byte_order_mark_is_removed(tmp_path: Path) -> None:
    assert texts(written(tmp_path / "a.txt", MARK + b"one\ntwo")) == ["one\ntwo"]
    assert texts(written(tmp_path / "b.txt.gz", gzip.compress(MARK + b"one"))) == ["one"]
    assert texts(written(tmp_path / "c.jsonl", MARK + b'{"text": "one"}\n{"text": "two"}\n')) == ["one", "two"]
    assert texts(written(tmp_path / "d.csv", MARK + b'"text",id\none,1\n')) == ["one"]
    lines = read_documents(tmp_path / "a.txt", "lines")
    assert [(each.name[-7:], "".join(each.pieces)) for each in lines] == [("a.txt:1", "one"), ("a.txt:2", "two")]
    # inside a text it is a character like others, and a second one stays
    assert texts(written(tmp_path / "e.txt", b"a" + MARK + b"b")) == ["a\ufeffb"]
    assert texts(written(tmp_path / "f.txt", MARK + MARK + b"b")) == ["\ufeffb"]


@pytest.mark.parametrize("size", [1, 2, 3, 1 << 20])
def test_a_byte_order_mark_counts_in_the_place_of_an_error(size: int, tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", MARK + b"ab\0")
    with pytest.raises(ValueError, match="a NUL byte at byte 5;"):
        list(read_pieces(path, size))
    path = written(tmp_path / "a.jsonl", MARK + b'{"text": "\xff"}')
    with pytest.raises(ValueError, match="at byte 13 of the file"):
        texts(path)


def test_files_without_a_mark_keep_their_identity_and_others_get_a_new_one(tmp_path: Path) -> None:
    """A store that an older version made of a file with a mark, or of a table as text, must not be found."""
    plain, marked, table = (
        written(tmp_path / name, content)
        for name, content in (("a.txt", b"text"), ("b.txt", MARK + b"text"), ("c.csv", b"text\nx\n"))
    )
    (part,) = identity(plain)
    assert part == [str(plain), 4, plain.stat().st_mtime_ns]
    assert [len(identity(path)[0]) for path in (marked, table)] == [4, 4]


def test_the_column_is_part_of_the_key_only_if_it_is_another(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = written(tmp_path / "a.jsonl", '{"text": "one", "body": "two"}\n' * 40)
    store = encode_corpus(path, ByteTokenizer(), cache=cache)
    assert store.folder == encode_corpus(path, ByteTokenizer(), cache=cache, column="text").folder
    other = encode_corpus(path, ByteTokenizer(), cache=cache, column="body")
    assert other.folder != store.folder
    assert ByteTokenizer().decode(other[:4]) == "two<|endoftext|>"
    bodies = prepare(path, Bytes(), cache=cache, column="body", split="document")
    assert ByteTokenizer().decode(bodies.train[:4]) == "two<|endoftext|>"


def test_a_folder_has_its_tables_read_only_if_it_has_no_other_text(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "text\none\n")
    written(tmp_path / "b.tsv", "text\ntwo\n")
    written(tmp_path / "c.json", "{}")
    assert texts(tmp_path) == ["one", "two"]
    assert list_skipped(tmp_path) == ["c.json"]
    (tmp_path / "below").mkdir()
    written(tmp_path / "below" / "d.txt", "three")
    assert texts(tmp_path) == ["three"]
    assert list_skipped([tmp_path, tmp_path / "a.csv", "austen"]) == ["a.csv", "b.tsv", "c.json"]
