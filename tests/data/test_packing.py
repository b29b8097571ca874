"""Packing: every token in exactly one row, and filling that the mask shows."""

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
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.data.tokenizers import ByteTokenizer
from duality.data.write import write_store

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
        ids, mask = sequences.rows(np.arange(len(sequences)))
        assert (ids.dtype, mask.dtype) == (torch.int64, torch.bool)
        assert ids.shape == mask.shape == (len(sequences), length)
        assert ids[mask].tolist() == store[:].tolist()
        assert int(mask.sum()) == sequences.num_tokens == len(store)
        assert mask[:-1].all()
        assert mask[-1].any()
        assert (ids[~mask] == 0).all()


def test_rows_come_in_the_order_asked(make_store: MakeStore) -> None:
    sequences = Sequences(make_store(["abcdefgh"]), 3)
    ids, mask = sequences.rows([2, 0, 2])
    assert ids.tolist() == [[103, 104, 256], [97, 98, 99], [103, 104, 256]]
    assert mask.all()


def test_a_text_shorter_than_a_row_is_one_row(make_store: MakeStore) -> None:
    sequences = Sequences(make_store(["ab"]), 5)
    assert len(sequences) == 1
    ids, mask = sequences.rows([0])
    assert ids.tolist() == [[97, 98, 256, 0, 0]]
    assert mask.tolist() == [[True, True, True, False, False]]


def test_no_rows(make_store: MakeStore) -> None:
    ids, mask = Sequences(make_store(["ab"]), 5).rows([])
    assert ids.shape == mask.shape == (0, 5)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_row_that_does_not_exist(index: int, make_store: MakeStore) -> None:
    with pytest.raises(ValueError, match=f"numbered 0 to 2; got {index} to {index}"):
        Sequences(make_store(["abcdefgh"]), 3).rows([index])


def test_a_length_of_nothing(make_store: MakeStore) -> None:
    with pytest.raises(ValueError, match="must be at least 1; got 0"):
        Sequences(make_store(["ab"]), 0)


def test_an_id_outside_the_vocabulary(make_store: MakeStore) -> None:
    store = make_store(["ab"])
    narrow = TokenStore(store.folder, replace(store.index, vocab_size=256))
    with pytest.raises(ValueError, match=r"id 256 in .* is outside the vocabulary of 256 ids"):
        Sequences(narrow, 2).rows([0, 1])
    assert Sequences(narrow, 2).rows([0])[0].tolist() == [[97, 98]]
