"""Data given from Python: every item is a document, ids are stored unchanged, and wrong data are refused."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from duality.data.corpus import Corpus, encode_corpus, prepare
from duality.data.documents import read_documents
from duality.data.memory import write_corpus
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.files.atomic import atomic_file
from duality.tokenizers.specs import Bytes, Numbers
from duality.tokenizers.tokenizer import NumberTokenizer

TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=40)
ROWS = st.lists(st.lists(st.integers(0, 70_000), max_size=12), min_size=1, max_size=8).filter(any)
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def texts_in(path: Path) -> list[str]:
    """The text of every document."""
    return ["".join(document.pieces) for document in read_documents(path)]


def rows_of(store: TokenStore, separator: int) -> list[list[int]]:
    """The ids of every document of a store, read through ``Sequences`` and without the separator."""
    ids, valid = Sequences(store, int(store.document_ends.max()), "document").rows(range(store.num_documents))
    rows = [row[real].tolist() for row, real in zip(ids, valid, strict=True)]
    assert all(row[-1] == separator for row in rows)
    return [row[:-1] for row in rows]


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_texts_are_documents(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written, tokenizer = write_corpus(iter(texts), Path(folder) / "new")
        assert (written, tokenizer) == (Path(folder) / "new" / "corpus.jsonl", None)
        assert texts_in(written) == texts
        assert [path.name for path in written.parent.iterdir()] == ["corpus.jsonl"]


def test_an_iterable_is_not_held_in_memory(tmp_path: Path) -> None:
    alive = 0

    class Text(str):
        def __new__(cls, text: str) -> Text:
            nonlocal alive
            alive += 1
            return super().__new__(cls, text)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def texts() -> Iterator[str]:
        for number in range(1000):
            assert alive <= 3
            yield Text(f"text {number}")

    assert len(texts_in(write_corpus(texts(), tmp_path)[0])) == 1000


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_rows_of_a_tensor_are_documents(dtype: torch.dtype, tmp_path: Path) -> None:
    written, tokenizer = write_corpus(torch.tensor([[3, 1, 4], [1, 5, 9]], dtype=dtype), tmp_path)
    assert texts_in(written) == ["3 1 4", "1 5 9"]
    assert tokenizer == Numbers(10)


@pytest.mark.parametrize("make", [list, tuple, iter], ids=lambda make: str(make.__name__))
def test_tensors_of_different_lengths_are_documents(make: Callable[[list[torch.Tensor]], Any], tmp_path: Path) -> None:
    rows = [torch.tensor([3, 1]), torch.tensor([], dtype=torch.int64), torch.tensor([0], dtype=torch.uint8)]
    written, tokenizer = write_corpus(make(rows), tmp_path)
    assert texts_in(written) == ["3 1", "", "0"]
    assert tokenizer == Numbers(4)


@settings(max_examples=40)
@given(rows=ROWS, data=st.data())
def test_ids_are_unchanged_if_split_by_document(rows: list[list[int]], data: st.DataObject) -> None:
    rows.append(data.draw(st.lists(st.integers(0, 70_000), min_size=1, max_size=5)))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        written, tokenizer = write_corpus([torch.tensor(row, dtype=torch.int64) for row in rows], folder)
        assert tokenizer == Numbers(max(map(max, filter(None, rows))) + 1)
        prepared = prepare(written, tokenizer, split="document", cache=folder)
        assert isinstance(prepared.tokenizer, NumberTokenizer)
        separator = prepared.tokenizer.separator
        assert separator is not None
        assert rows_of(prepared.train, separator) + rows_of(prepared.validation, separator) == rows
        assert prepared.tokenizer.decode(prepared.validation[:]) == " ".join(map(str, rows[-1])) + "<|endoftext|>"
        everything = encode_corpus(written, prepared.tokenizer, cache=folder)
        assert rows_of(everything, separator) == rows


@settings(max_examples=60)
@given(
    largest=st.sampled_from([1, 12, 70_000, 4 * 10**9]),
    length=st.integers(5, 60),
    validation=st.floats(0.1, 0.9),
    seed=st.integers(0, 2**32),
)
def test_ids_are_unchanged_if_split_by_position(largest: int, length: int, validation: float, seed: int) -> None:
    ids = torch.randint(0, largest + 1, (1, length), generator=torch.Generator().manual_seed(seed))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        written, tokenizer = write_corpus(ids, folder)
        assert tokenizer is not None
        try:
            prepared = prepare(written, tokenizer, split="position", validation=validation, cache=folder)
        except ValueError as error:
            if not any(reason in str(error) for reason in ("too short to hold out", "no text in the 1 document")):
                raise
            reject()
        separator = prepared.tokenizer.separator
        assert separator is not None
        assert rows_of(prepared.train, separator)[0] + rows_of(prepared.validation, separator)[0] == ids[0].tolist()


def test_the_sequences_of_a_tensor_are_its_rows(tmp_path: Path) -> None:
    ids = torch.arange(300).reshape(100, 3) % 7
    written, tokenizer = write_corpus(ids, tmp_path)
    assert tokenizer is not None
    prepared: Corpus = prepare(written, tokenizer, cache=tmp_path)
    assert (prepared.tokenizer.vocab_size, prepared.tokenizer.separator) == (8, 7)
    rows, valid = Sequences(prepared.train, 4, "document").rows(range(95))
    assert valid.all()
    assert torch.equal(rows[:, :3], ids[:95])
    assert (rows[:, 3] == 7).all()


def test_a_file_of_numbers_larger_than_a_piece(tmp_path: Path) -> None:
    ids = (torch.arange(400_000) * 48_271 % 65_535).tolist()
    path = tmp_path / "numbers.txt"
    path.write_text("\t".join(map(str, ids)))
    assert path.stat().st_size > 2 << 20
    store = encode_corpus(path, Numbers(65_535).train([]), cache=tmp_path / "cache")
    assert store[:-1].tolist() == ids
    assert store.dtype == "<u2"


def test_texts_are_prepared_like_a_file(tmp_path: Path) -> None:
    written, _ = write_corpus((f"text {number}\n" for number in range(100)), tmp_path)
    prepared = prepare(written, Bytes(), cache=tmp_path)
    assert prepared.train.num_documents == 95
    assert prepared.tokenizer.decode(prepared.validation[:]).startswith("text 95\n<|endoftext|>text 96")


def nothing() -> Iterator[str]:
    """A generator without items."""
    yield from ()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("one text", r"got one str: give one text as \[text\]; a file or a named corpus .* data\.corpus"),
        (b"bytes", "got one bytes"),
        (Path("novel.txt"), "got one .*Path: .* give its path"),
        ({"text": "one"}, "got one dict"),
        (None, "got one NoneType"),
        (3, "the data must be an iterable of strings, an integer tensor .* or a sequence of 1-D .* got one int"),
        ([], "the data are empty; give an iterable of strings, .* with at least one item"),
        (nothing(), "the data are empty"),
        (torch.zeros(0, 5, dtype=torch.int64), "the data are empty"),
        (["one", 2], "item 1 of the data is no string, its type is int; give an iterable of strings"),
        ([None], "item 0 of the data is no string, its type is NoneType"),
        ([[1, 2], [3]], "item 0 of the data is no string, its type is list; .* make a tensor of a list of ids"),
        (["one", torch.tensor([1])], "item 1 of the data is no string, its type is Tensor"),
        ([torch.tensor([1]), "one"], "item 1 of the data is no tensor, its type is str"),
        (["ab", "ab\ud800"], "item 1 of the data: half a surrogate pair at position 2"),
        (torch.tensor([1, 2]), r"shape \(N, L\), one document per row; got \(2,\): .* ids\.reshape\(1, -1\)"),
        (torch.zeros(2, 2, 2, dtype=torch.int64), r"got \(2, 2, 2\)"),
        (torch.zeros(2, 2), r"item 0 of the data has the dtype torch\.float32; .* with \.long\(\)"),
        (torch.zeros(2, 2, dtype=torch.bool), "dtype torch.bool"),
        ([torch.tensor([1]), torch.tensor([0.5])], "item 1 of the data has the dtype"),
        ([torch.zeros(2, 2, dtype=torch.int64)], r"item 0 of the data has the shape \(2, 2\); give 1-D tensors"),
        (torch.tensor([[1, 2], [3, -100]]), r"item 1 of the data has the id -100; .* row\[row >= 0\]"),
        (torch.zeros(5, 0, dtype=torch.int64), "no ids, only tensors of length 0"),
        (
            torch.tensor([[1 << 40]]),
            "from 1 to 4294967295 values; got 1099511627777: .* number the ids from 0 without gaps",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else type(value).__name__,
)
def test_wrong_data_are_refused_and_leave_the_earlier_file(data: Any, problem: str, tmp_path: Path) -> None:
    earlier, _ = write_corpus(["earlier"], tmp_path)
    with pytest.raises(ValueError, match=problem):
        write_corpus(data, tmp_path)
    assert texts_in(earlier) == ["earlier"]
    assert list(tmp_path.iterdir()) == [earlier]


def test_an_iterable_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield "one"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(texts(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with atomic_file(path) as stream:
        stream.write(json.dumps(["new"]))
        stream.flush()
        assert path.read_text() == "old"
    assert path.read_text() == '["new"]'
    assert list(tmp_path.iterdir()) == [path]
