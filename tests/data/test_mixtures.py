"""Mixtures of corpora: their shares, their epochs, their parts, and a training on one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import session
from support.runs import quiet, small_recipe

from duality.data.corpus import prepare
from duality.data.loader import PERIOD, Loader, MixedOrder
from duality.data.named import shares_of
from duality.recipes.catalogue import _make_absolute
from duality.recipes.corpus import _mix_order, count_vocabulary, describe_corpus, make_sequences, prepare_corpus
from duality.tokenizers.specs import Bytes


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=5),
    st.lists(st.floats(0.01, 10), min_size=5, max_size=5),
    st.integers(0, 100),
)
@settings(max_examples=40, deadline=None)
def test_every_corpus_has_its_share_and_its_epochs(sizes: list[int], weights: list[float], seed: int) -> None:
    shares = tuple(weight / sum(weights[: len(sizes)]) for weight in weights[: len(sizes)])
    order = MixedOrder(tuple(np.cumsum(sizes).tolist()), shares, seed)
    places = order.sequences(np.arange(2 * PERIOD))
    groups = np.searchsorted(order.ends, places, side="right")
    for group, (size, share) in enumerate(zip(sizes, shares)):
        own = places[groups == group]
        assert abs(len(own) / (2 * PERIOD) - share) <= 1.001 * len(sizes) / PERIOD
        start = order.ends[group] - size
        for epoch in range(len(own) // size):
            seen = own[epoch * size : (epoch + 1) * size]
            assert sorted(seen) == list(range(start, start + size))
    assert np.array_equal(order.sequences(np.arange(777, 1234)), places[777:1234])


def mixture(folder: Path) -> str:
    """A file with 300 lines in which a, and one with 100 in which b is written."""
    for name, count in (("a", 300), ("b", 100)):
        (folder / f"{name}.txt").write_text("".join(f"{name * 7}\n" for _ in range(count)))
    return f"[{folder}/a.txt:1,{folder}/b.txt:3]"


def test_every_corpus_is_split_by_itself(tmp_path: Path) -> None:
    spec = mixture(tmp_path)
    corpus = prepare(spec, Bytes(), documents="lines", validation=0.1, cache=tmp_path / "cache")
    assert corpus.groups == (270, 90)
    for store, a, b in ((corpus.train, 270, 90), (corpus.validation, 30, 10)):
        text = corpus.tokenizer.decode(store[:])
        assert text == ("a" * 7 + "<|endoftext|>") * a + ("b" * 7 + "<|endoftext|>") * b
    other = prepare(spec.replace(":3", ":9"), Bytes(), documents="lines", validation=0.1, cache=tmp_path / "cache")
    assert other.train.folder == corpus.train.folder  # weights are no part of the tokens
    listed = [tmp_path / "a.txt", tmp_path / "b.txt"]
    plain = prepare(listed, Bytes(), documents="lines", validation=0.1, cache=tmp_path / "cache")
    assert plain.groups == ()
    assert plain.train.folder != corpus.train.folder


@pytest.mark.parametrize("packing", ["wrap", "document"])
def test_a_training_sees_the_shares(packing: str, tmp_path: Path) -> None:
    spec = mixture(tmp_path)
    recipe = small_recipe(
        Path("x"), f"data.corpus={spec}", "data.documents=lines", "data.length=8", f"data.packing={packing}"
    )
    corpus = prepare_corpus(recipe)
    rows = make_sequences(recipe.data, corpus.train, corpus.tokenizer)
    order = _mix_order(recipe.data, corpus, 0)
    loader = Loader(rows, 100, 0, order)
    seen = Counter(chr(int(row[0])) for step in range(10) for row in loader.batch(step).ids)
    assert seen["b"] / (seen["a"] + seen["b"]) == pytest.approx(0.75, abs=0.02)
    lines = "\n".join(describe_corpus(recipe, corpus))
    assert "25.0% of the sequences are of" in lines
    assert "75.0% of the sequences are of" in lines
    session.train(recipe, tmp_path / "run", report=quiet)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("[a.txt:1]", "fewer than two corpora"),
        ("[a.txt:1,a.txt:2]", "or one twice"),
        ("[a.txt:1,b.txt]", "'b.txt' is no corpus with a positive weight"),
        ("[a.txt:1,b.txt:-2]", "'b.txt:-2' is no corpus with a positive weight"),
        ("[a.txt:1,b.txt:nan]", "is no corpus with a positive weight"),
    ],
)
def test_what_is_no_mixture_is_refused(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shares_of(spec)


def test_places_of_a_mixture_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert _make_absolute("[a.txt:0.5,austen:0.5]") == f"[{tmp_path}/a.txt:0.5,austen:0.5]"


@pytest.mark.parametrize("packing", ["wrap", "document"])
def test_tokens_are_counted_as_often_as_a_training_takes_them(packing: str, tmp_path: Path) -> None:
    recipe = small_recipe(
        Path("x"), f"data.corpus={mixture(tmp_path)}", "data.documents=lines", f"data.packing={packing}"
    )
    counts = count_vocabulary(recipe.data, prepare_corpus(recipe)).counts
    assert counts is not None
    found = counts()
    assert float(found[ord("b")] / found[ord("a")]) == pytest.approx(3, rel=0.05)
