"""Packing: every token is in exactly one row, and `valid` is False on padding."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duality.data.documents import Document
from duality.data.encode import write_store
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.tokenizers.tokenizer import ByteTokenizer

MakeStore = Callable[..., TokenStore]


@settings(deadline=None, max_examples=50)
@given(
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=6).filter(any),
    shard_tokens=st.integers(1, 30),
    length=st.integers(1, 40),
)
def test_every_token_is_in_one_row(texts: list[str], shard_tokens: int, length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        documents = [Document("", (text,)) for text in texts]
        store = write_store(Path(folder) / "s", documents, ByteTokenizer(), shard_tokens=shard_tokens)
        sequences = Sequences(store, length)
        ids, valid = sequences.rows(np.arange(len(sequences)))
        assert (ids.dtype, valid.dtype) == (torch.int64, torch.bool)
        assert ids.shape == valid.shape == (len(sequences), length)
        assert ids[valid].tolist() == store[:].tolist()
        assert int(valid.sum()) == len(store)
        assert valid[:-1].all()
        assert valid[-1].any()
        assert (ids[~valid] == 0).all()


def test_rows_come_in_the_requested_order(make_store: MakeStore) -> None:
    sequences = Sequences(make_store(["abcdefgh"]), 3)
    ids, valid = sequences.rows([2, 0, 2])
    assert ids.tolist() == [[103, 104, 256], [97, 98, 99], [103, 104, 256]]
    assert valid.all()


def test_a_text_shorter_than_a_row_is_one_row(make_store: MakeStore) -> None:
    sequences = Sequences(make_store(["ab"]), 5)
    assert len(sequences) == 1
    ids, valid = sequences.rows([0])
    assert ids.tolist() == [[97, 98, 256, 0, 0]]
    assert valid.tolist() == [[True, True, True, False, False]]


def test_no_rows(make_store: MakeStore) -> None:
    ids, valid = Sequences(make_store(["ab"]), 5).rows([])
    assert ids.shape == valid.shape == (0, 5)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_row_that_does_not_exist(index: int, make_store: MakeStore) -> None:
    with pytest.raises(ValueError, match=f"numbered 0 to 2; got {index} to {index}"):
        Sequences(make_store(["abcdefgh"]), 3).rows([index])


def test_a_length_of_zero(make_store: MakeStore) -> None:
    with pytest.raises(ValueError, match="must be at least 1; got 0"):
        Sequences(make_store(["ab"]), 0)


def test_an_id_outside_the_vocabulary(make_store: MakeStore) -> None:
    store = make_store(["ab"])
    narrow = replace(store, vocab_size=256)
    with pytest.raises(ValueError, match=r"id 256 in .* is outside the vocabulary of 256 ids"):
        Sequences(narrow, 2).rows([0, 1])
    assert Sequences(narrow, 2).rows([0])[0].tolist() == [[97, 98]]
