"""Documents: every form of a corpus, pieces that join to the text, and errors that name the place."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duality.data.documents import CorpusSpec, identity, read_documents
from duality.data.readers import Repeatable, excerpt, read_pieces
from duality.tokenizers.specs import BPE

SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=80)
SPACED = st.text(alphabet="ab \n\t\x1cé'😀.", max_size=80)


def read(spec: CorpusSpec) -> list[tuple[str, str]]:
    """Name and text of every document."""
    return [(document.name, "".join(document.pieces)) for document in read_documents(spec)]


def jsonl(*texts: str) -> bytes:
    """The bytes of a .jsonl file."""
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("first\r\nsecond\n\nthird é".encode())
    assert read(path) == read(str(path)) == [(str(path), "first\r\nsecond\n\nthird é")]


def test_a_jsonl_file_has_one_document_per_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl("one", "", "th\nree") + b"\n")
    assert read(path) == [(f"{path}:1", "one"), (f"{path}:2", ""), (f"{path}:3", "th\nree")]


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_files(ending: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / f"a.txt{ending}").write_bytes(pack(b"plain"))
    (tmp_path / f"b.jsonl{ending}").write_bytes(pack(jsonl("one", "two")))
    assert [text for _, text in read(tmp_path)] == ["plain", "one", "two"]


def test_a_folder_is_read_in_the_order_of_paths(tmp_path: Path) -> None:
    for name in ("z.txt", "b/c.md", "b/a.text", "a.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(jsonl(name) if name.endswith("jsonl") else name.encode())
    (tmp_path / "picture.png").write_bytes(b"\0")
    names = ["a.jsonl:1", "b/a.text", "b/c.md", "z.txt"]
    assert read(tmp_path) == list(zip(names, ["a.jsonl", *names[1:]], strict=True))


def test_a_list_is_read_in_its_order(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    assert [text for _, text in read([tmp_path / "b.txt", str(tmp_path / "a.txt")])] == ["b", "a"]


def test_an_existing_path_is_preferred_to_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "austen").write_text("my own")
    monkeypatch.chdir(tmp_path)
    assert read("austen") == [("austen", "my own")]


@SHARED_FOLDER
@given(text=st.one_of(TEXTS, SPACED), size=st.integers(1, 20))
def test_pieces_join_to_the_text(text: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "any.txt"
    path.write_bytes(text.encode("utf-8"))
    pieces = Repeatable(partial(read_pieces, path, size))
    assert "".join(pieces) == "".join(pieces) == text
    assert all(pieces)


TOKENIZER = BPE(300).train(["aa bb ab. ab ba  aa\n\nbb a'b 'ab aa bb\t ab \n ba é é é😀😀"] * 3)


def is_border(before: str, after: str) -> bool:
    """Whether a piece may end between two texts without changing their tokens."""
    return bool(before) and not before[-1].isspace() and after[:1] in (" ", "\n")


@SHARED_FOLDER
@given(text=SPACED, size=st.integers(1, 40))
def test_pieces_end_at_borders_and_encode_like_the_whole(text: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "any.txt"
    path.write_bytes(text.encode("utf-8"))
    merged = [""]
    for piece in read_pieces(path, size):
        if is_border(merged[-1], piece):
            merged.append(piece)
            continue
        # A piece without any border inside may be cut anywhere, and then its tokens may differ.
        last = merged[-1]
        assert not any(is_border(last[:place], last[place:]) for place in range(1, len(last)))
        merged[-1] += piece
    encoded = [token for piece in merged for token in TOKENIZER.encode(piece).tolist()]
    assert encoded == TOKENIZER.encode(text).tolist()


@SHARED_FOLDER
@given(
    numbers=st.lists(st.integers(0, 10**19)),
    space=st.sampled_from([" ", "\n", "\t", "\r\n", ", "]),
    size=st.integers(1, 40),
)
def test_pieces_cut_no_number(numbers: list[int], space: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "any.txt"
    path.write_bytes(space.join(map(str, numbers)).encode())
    found = [word for piece in read_pieces(path, size) for word in piece.replace(",", " ").split()]
    assert found == [str(number) for number in numbers]


def test_a_file_of_one_long_number_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "pi.txt"
    path.write_text("31415926535" * 50)
    assert max(len(piece) for piece in read_pieces(path, 30)) <= 50


def test_a_large_file_is_cut_at_borders(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_text("some words of text. " * 500)
    pieces = list(read_pieces(path, 1000))
    assert len(pieces) >= 10
    assert all(piece[0] == " " and not piece[-1].isspace() for piece in pieces[1:-1])


@given(st.lists(st.text(max_size=8), max_size=8), st.integers(-3, 40), st.integers(0, 40))
def test_an_excerpt_is_a_slice(pieces: list[str], start: int, stop: int) -> None:
    assert "".join(excerpt(pieces, start, stop)) == "".join(pieces)[max(0, start) : stop]


def test_a_name_nearly_right_is_suggested() -> None:
    with pytest.raises(ValueError, match=r"'austin'; give a path that exists or a named corpus: did you mean austen\?"):
        read_documents("austin")
    with pytest.raises(ValueError, match=r"named corpus 'xyz'; .* choose from ag-news, arxiv, austen, enwik8"):
        read_documents("xyz")


@pytest.mark.parametrize("spec", ["", "  ", "no/such/file.txt"])
def test_what_does_not_exist(spec: str) -> None:
    with pytest.raises(ValueError, match="no file, folder or named corpus"):
        read_documents(spec)


def test_an_empty_list() -> None:
    with pytest.raises(ValueError, match="list of corpora is empty"):
        read_documents([])


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    for spec in (tmp_path, tmp_path / "empty.txt"):
        with pytest.raises(ValueError, match="is empty"):
            read_documents(spec)


def test_a_folder_without_text(tmp_path: Path) -> None:
    (tmp_path / "picture.png").touch()
    with pytest.raises(ValueError, match=r"no text files; looked for are \.txt, \.text, \.md, \.jsonl.*\.gz or \.xz"):
        read_documents(tmp_path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"abc\0def", "a NUL byte at byte 3"),
        (b"caf\xe9 noir", "no UTF-8 at byte 3"),
        (b"1234567\xc3(", "no UTF-8 at byte 7"),
        (b"12345678\xe2\x82", "half a UTF-8 character at byte 8"),
    ],
)
@pytest.mark.parametrize("size", [2, 1 << 20])
def test_a_binary_file_is_an_error_with_the_place(data: bytes, problem: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"a.txt is not text: {problem}; give"):
        list(read_pieces(path, size))


def test_a_position_in_unpacked_data_is_described_so(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"ab\0"))
    with pytest.raises(ValueError, match="at byte 2 after unpacking"):
        list(read_pieces(path))


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_cut_off_archive(ending: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{ending}"
    for data in (pack(b"some text" * 99)[:-12], b"no archive at all"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"is no whole {ending} file"):
            list(read_pieces(path))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"body": "x"}', r"line 2: no 'text' \(got the keys 'body'\)"),
        (b'{"text": 3}', r"line 2: the value of 'text' is a number \(3\); it must be a string"),
        (b'["text"]', r"line 2: no 'text' \(got a list\)"),
        (b"{text}", "line 2: not JSON"),
        (b'{"text": "\xff"}', "line 2: not UTF-8 text at byte 25 of the file"),
        (b'{"text": "ab\\ud800"}', "line 2: half a surrogate pair at character 2"),
    ],
)
def test_a_bad_line_is_an_error_with_its_number(line: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl("ok") + line + b"\n")
    with pytest.raises(ValueError, match=problem):
        read(path)


def test_identity_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = identity(path)
    assert before == identity(tmp_path)
    path.write_text("three")
    assert identity(path) != before
    assert identity("austen") != identity("gutenberg-prose")


def test_a_document_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two")
    (tmp_path / "b.jsonl").write_bytes(jsonl("three"))
    documents = list(read_documents(tmp_path))
    for _ in range(2):
        assert ["".join(document.pieces) for document in documents] == ["one two", "three"]
