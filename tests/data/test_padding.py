"""Padding that is modelled: end-of-text tokens after a document's end, valid, and told apart from real tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
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
from duality.tokenizers.specs import BPE
from duality.tokenizers.tokenizer import ByteTokenizer, CharTokenizer, NumberTokenizer, Tokenizer, text_before_end

MakeStore = Callable[..., TokenStore]
END = ByteTokenizer.separator


@settings(max_examples=60)
@given(
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=6).filter(any),
    shard_tokens=st.integers(1, 30),
    length=st.integers(1, 40),
)
def test_all_is_valid_and_the_real_tokens_are_those_of_the_store(
    texts: list[str], shard_tokens: int, length: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        documents = [Document("", (text,)) for text in texts]
        store = write_store(Path(folder) / "s", documents, ByteTokenizer(), shard_tokens=shard_tokens)
        ignored, modelled = (Sequences(store, length, "document", padding, END) for padding in ("ignore", "model"))
        everything = np.arange(len(modelled))
        assert len(modelled) == len(ignored)
        (ids, valid), real = modelled.rows(everything), modelled.real(everything)
        assert (valid.dtype, real.dtype, real.shape) == (torch.bool, torch.bool, ids.shape)
        assert valid.all()
        assert ids[real].tolist() == store[:].tolist()
        assert (ids[~real] == END).all()
        assert int(real.sum()) == len(store)
        assert int((~real).sum()) == modelled.num_padding
        assert ignored.num_padding == 0
        # rows differ from those of ignored padding in the padding alone
        before, kept = ignored.rows(everything)
        assert torch.equal(kept, real)
        assert torch.equal(torch.where(real, ids, 0), before)


def test_an_example(make_store: MakeStore) -> None:
    sequences = Sequences(make_store(["aaaaa", "bb", "", "ddd"]), 4, "document", "model", END)
    a, b, d = b"abd"
    rows = [[a, a, a, a], [a, END, END, END], [b, b, END, END], [END] * 4, [d, d, d, END]]
    ids, valid = sequences.rows(range(5))
    assert ids.tolist() == rows
    assert valid.all()
    assert sequences.real(range(5)).sum(1).tolist() == [4, 2, 3, 1, 4]
    assert sequences.num_padding == 6
    assert sequences.rows([])[0].shape == sequences.real([]).shape == (0, 4)
    with pytest.raises(ValueError, match="numbered 0 to 4; got 5 to 5"):
        sequences.real([5])


def test_light_padding_is_seen_whole_and_paid_for_in_part(make_store: MakeStore) -> None:
    store = make_store(["ab"] * 40)
    light, modelled = (Sequences(store, 23, "document", padding, END) for padding in ("light", "model"))
    rows = np.arange(40)
    ids, valid = light.rows(rows)
    assert torch.equal(ids, modelled.rows(rows)[0])
    assert valid.all()
    paid, real = light.paid(rows), light.real(rows)
    assert paid is not None
    assert modelled.paid(rows) is Sequences(store, 23, padding="light", separator=END).paid(rows) is None
    assert paid[real].all()
    assert paid[:, 3:].sum(0).tolist() == [4] * 20  # every place of the padding, in a tenth of the rows
    assert paid[:, 3:].sum(1).tolist() == [2] * 40
    batch = Loader(light, 8, 3).batch(0)
    assert batch.paid is not None
    assert batch.paid.tolist() == (real | paid)[Loader(light, 8, 3).indices(0)].tolist()
    assert batch.valid is None
    assert batch.padding is not None
    assert int(batch.padding.sum()) == 8 * 20
    with pytest.raises(ValueError, match="padding='light' needs the separator"):
        Sequences(store, 23, "document", "light")


def test_every_epoch_has_each_real_token_once(make_store: MakeStore) -> None:
    store = make_store(["abc", "defghij", "k", "lm"])
    sequences = Sequences(store, 4, "document", "model", END)
    loader = Loader(sequences, len(sequences), 3)
    for epoch in range(3):
        batch = loader.batch(epoch)
        assert batch.valid is None  # nothing is left out
        real = sequences.real(loader.indices(epoch))
        assert sorted(batch.ids[real].tolist()) == sorted(store[:].tolist())
        assert (batch.ids[~real] == END).all()


def test_the_last_window_of_a_wrapped_store_is_ignored(make_store: MakeStore) -> None:
    store = make_store(["abc", "d"])
    wrapped = Sequences(store, 4, "wrap", "model")  # which needs no separator
    assert not wrapped.models_padding
    ids, valid = wrapped.rows([0, 1])
    assert ids.tolist() == [[*b"abc", END], [*b"d", END, 0, 0]]
    assert valid.tolist() == wrapped.real([0, 1]).tolist() == [[True] * 4, [True, True, False, False]]
    assert wrapped.num_padding == 0


def test_labels_do_not_depend_on_the_padding(tmp_path: Path) -> None:
    documents = [Document(text, (text,), label) for text, label in (("aaaaa", "x"), ("b", "y"))]
    store = write_store(tmp_path / "labelled", documents, ByteTokenizer(), label_names=("x", "y"))
    labels = Loader(Sequences(store, 4, "document", "model", END), 3, 0).sequences.labels(range(3))
    assert labels is not None
    assert labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize("separator", [None, -1, 257])
def test_modelled_padding_needs_a_separator(separator: int | None, make_store: MakeStore) -> None:
    store = make_store(["ab"])
    with pytest.raises(ValueError, match=r"needs the separator of the tokenizer, from 0 to 256; got .*'ignore'"):
        Sequences(store, 4, "document", "model", separator)
    Sequences(store, 4, "document", "ignore", separator)


def test_an_unknown_padding(make_store: MakeStore) -> None:
    wrong: Any = "mask"
    with pytest.raises(ValueError, match="padding is 'model', 'light' or 'ignore'; got 'mask'"):
        Sequences(make_store(["ab"]), 4, "document", wrong)


@pytest.mark.parametrize(
    "tokenizer",
    [ByteTokenizer(), CharTokenizer(" 0123"), NumberTokenizer(9), BPE(257).train(["1 2 3"])],
    ids=lambda tokenizer: type(tokenizer).__name__,
)
def test_the_text_before_the_end(tokenizer: Tokenizer) -> None:
    one, two, end = tokenizer.encode("1 2").tolist(), tokenizer.encode("3").tolist(), tokenizer.separator
    assert text_before_end(tokenizer, [*one, end, *two, end]) == "1 2"
    assert text_before_end(tokenizer, one) == "1 2"
    assert text_before_end(tokenizer, [end, *one]) == ""
    assert text_before_end(tokenizer, []) == ""
    # only from a place on
    row = [*one, end, *two, end]
    assert text_before_end(tokenizer, row, len(one) + 1) == "1 2<|endoftext|>3"
    assert text_before_end(tokenizer, row, len(one)) == "1 2"
    assert text_before_end(tokenizer, row, len(row)) == tokenizer.decode(row)
