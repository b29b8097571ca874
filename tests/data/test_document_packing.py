"""Packing by document: no row has two documents, every token is in one row, and rows have labels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duality.data.documents import Document
from duality.data.encode import write_store
from duality.data.loader import Loader
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.tokenizers.tokenizer import ByteTokenizer

MakeStore = Callable[..., TokenStore]
LABELS = ("a", "b", "c")


@pytest.fixture
def labelled(tmp_path: Path) -> TokenStore:
    """Four documents, of 6, 3, 1 and 4 tokens."""
    texts = [("aaaaa", "c"), ("bb", "a"), ("", "c"), ("ddd", "b")]
    documents = [Document(text, (text,), label) for text, label in texts]
    return write_store(tmp_path / "labelled", documents, ByteTokenizer(), label_names=LABELS, shard_tokens=4)


@settings(max_examples=60)
@given(
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=6).filter(any),
    shard_tokens=st.integers(1, 30),
    length=st.integers(1, 40),
    data=st.data(),
)
def test_rows_are_consecutive_parts_of_single_documents(
    texts: list[str], shard_tokens: int, length: int, data: st.DataObject
) -> None:
    labels = data.draw(st.lists(st.sampled_from(LABELS), min_size=len(texts), max_size=len(texts)))
    documents = [Document("", (text,), label) for text, label in zip(texts, labels, strict=True)]
    expected, owners = [], []
    for text, label in zip(texts, labels, strict=True):
        tokens = [*text.encode("utf-8"), 256]
        for start in range(0, len(tokens), length):
            expected.append(tokens[start : start + length])
            owners.append(LABELS.index(label))
    with tempfile.TemporaryDirectory() as folder:
        store = write_store(
            Path(folder) / "s", documents, ByteTokenizer(), label_names=LABELS, shard_tokens=shard_tokens
        )
        sequences = Sequences(store, length, "document")
        assert len(sequences) == len(expected)
        ids, valid = sequences.rows(np.arange(len(sequences)))
        assert (ids.dtype, valid.dtype, ids.shape, valid.shape) == (
            torch.int64,
            torch.bool,
            *[(len(expected), length)] * 2,
        )
        assert [row[real].tolist() for row, real in zip(ids, valid, strict=True)] == expected
        assert valid.sum(1).tolist() == [len(row) for row in expected]
        assert all(real[: int(real.sum())].all() for real in valid)
        assert (ids[~valid] == 0).all()
        assert ids[valid].tolist() == store[:].tolist()
        assert int(valid.sum()) == len(store)
        order = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=8))
        assert torch.equal(sequences.rows(order)[0], ids[order])
        chosen = sequences.labels(order)
        assert chosen is not None
        assert chosen.dtype == torch.int64
        assert chosen.tolist() == [owners[index] for index in order]


def test_an_example(labelled: TokenStore) -> None:
    sequences = Sequences(labelled, 4, "document")
    ids, valid = sequences.rows(range(5))
    a, b, d, end = *b"abd", 256
    assert ids.tolist() == [[a, a, a, a], [a, end, 0, 0], [b, b, end, 0], [end, 0, 0, 0], [d, d, d, end]]
    assert valid.sum(1).tolist() == [4, 2, 3, 1, 4]
    labels = sequences.labels(range(5))
    assert labels is not None
    assert labels.tolist() == [2, 2, 0, 2, 1]
    none = sequences.labels([])
    assert none is not None
    assert none.shape == (0,)


def test_one_document_gives_the_same_rows_as_plain_packing(make_store: MakeStore) -> None:
    store = make_store(["abcdefghij"], shard_tokens=3)
    wrapped, by_document = Sequences(store, 4), Sequences(store, 4, "document")
    assert wrapped == Sequences(store, 4, "wrap")
    assert len(wrapped) == len(by_document) == 3
    for ours, theirs in zip(by_document.rows(range(3)), wrapped.rows(range(3)), strict=True):
        assert torch.equal(ours, theirs)


def test_a_store_without_labels_has_none(make_store: MakeStore) -> None:
    store = make_store(["ab", "c"])
    for packing in ("wrap", "document"):
        sequences = Sequences(store, 2, packing)
        assert sequences.labels([0]) is None
        assert Loader(sequences, 2, 0).batch(0).labels is None


def test_a_wrapped_row_has_no_label(labelled: TokenStore) -> None:
    sequences = Sequences(labelled, 4)
    assert sequences.rows([0])[0].tolist() == [[97, 97, 97, 97]]
    with pytest.raises(ValueError, match=r"packed by 'wrap' .* several labels; use packing='document'"):
        sequences.labels([0])
    with pytest.raises(ValueError, match="use packing='document'"):
        Loader(sequences, 2, 0)


def test_batches_have_the_labels_of_their_rows(labelled: TokenStore) -> None:
    sequences = Sequences(labelled, 4, "document")
    loader = Loader(sequences, 3, 5)
    for step in range(5):
        batch = loader.batch(step)
        expected = sequences.labels(loader.indices(step))
        assert batch.labels is not None
        assert expected is not None
        assert torch.equal(batch.labels, expected)
        part = loader.batch(step, slice(1, 3)).labels
        assert part is not None
        assert torch.equal(part, expected[1:3])


@pytest.mark.parametrize("index", [-1, 5])
def test_a_row_that_does_not_exist(index: int, labelled: TokenStore) -> None:
    sequences = Sequences(labelled, 4, "document")
    for read in (sequences.rows, sequences.labels):
        with pytest.raises(ValueError, match=f"numbered 0 to 4; got {index} to {index}"):
            read([index])


def test_an_unknown_packing(labelled: TokenStore) -> None:
    wrong: Any = "best-fit"
    with pytest.raises(ValueError, match="a packing is 'wrap' or 'document'; got 'best-fit'"):
        Sequences(labelled, 4, wrong)


def test_damage_is_found(labelled: TokenStore) -> None:
    narrow = replace(labelled, label_names=("a", "b"))
    with pytest.raises(ValueError, match=r"a label in .* is outside 0 to 1: the store is damaged"):
        Sequences(narrow, 4, "document").labels([0])
    path = labelled.folder / "documents.bin"
    for ends in ([6, 5, 10, 14], [6, 9, 10, 13]):
        path.write_bytes(np.array(ends, dtype="<i8").tobytes())
        with pytest.raises(ValueError, match=r"document ends in .* do not fit its 14 tokens"):
            len(Sequences(TokenStore.open(labelled.folder), 4, "document"))


def test_rows_of_a_million_documents(tmp_path: Path, labelled: TokenStore) -> None:
    count = 1_000_000
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "documents.bin").write_bytes(np.arange(3, 3 * count + 1, 3, dtype="<i8").tobytes())
    (folder / "labels.bin").write_bytes((np.arange(count) % 3).astype("<i4").tobytes())
    (folder / "shard").write_bytes(np.tile(np.array([1, 2, 256], dtype="<u2"), count).tobytes())
    shard = replace(labelled.shards[0], name="shard", num_tokens=3 * count)
    store = replace(labelled, folder=folder, num_tokens=3 * count, num_documents=count, shards=(shard,))
    sequences = Sequences(store, 2, "document")
    assert len(sequences) == 2 * count
    indices = np.array([0, 1, 2 * count - 2, 2 * count - 1, 999_999])
    ids, valid = sequences.rows(indices)
    assert ids.tolist() == [[1, 2], [256, 0], [1, 2], [256, 0], [256, 0]]
    assert valid.sum(1).tolist() == [2, 1, 2, 1, 1]
    labels = sequences.labels(indices)
    assert labels is not None
    assert labels.tolist() == [0, 0, (count - 1) % 3, (count - 1) % 3, 499_999 % 3]
