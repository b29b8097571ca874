"""Measures of samples: exact on tiny cases, errors against their theoretical values."""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.judges import generative_perplexity, table_judge
from support.runs import quiet

from duality.evaluation.judge import Judge, _token_nats
from duality.evaluation.metrics import (
    Values,
    bootstrap,
    distinct,
    distinct_shares,
    mauve,
    occupancy,
    self_repetition,
    unigram_entropy,
)
from duality.evaluation.samples import Samples
from duality.evaluation.sweep import RunSampler, Sweep


def test_misuse_is_refused() -> None:
    judge = table_judge()
    with pytest.raises(ValueError, match="no texts to judge"):
        generative_perplexity(judge, [])
    for bad in (torch.zeros(3, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 3)):
        with pytest.raises(ValueError, match="tokens must be ids of shape"):
            unigram_entropy(bad)
    for n in (0, 4):
        with pytest.raises(ValueError, match=f"{n}-grams of samples of 3 tokens"):
            distinct(torch.zeros(2, 3, dtype=torch.int64), n)


def test_perplexity_is_taken_over_tokens_not_texts() -> None:
    judge = table_judge()
    texts = ["a", "a longer text", "one more"]
    scores = judge.nats(texts)
    expected = math.exp(sum(nats for nats, _ in scores) / sum(count for _, count in scores))
    assert generative_perplexity(judge, texts).value == pytest.approx(expected)


def test_the_error_is_that_of_the_ratio() -> None:
    """Against the delta method, whose interval is 1.96 errors to each side; the seed fixes the value."""
    judge = table_judge()
    source = random.Random(1)
    texts = ["".join(source.choices("abcdefgh ", k=source.randint(20, 60))) for _ in range(200)]
    found = generative_perplexity(judge, texts)
    nats, counts = np.array(judge.nats(texts)).T
    rate = nats.sum() / counts.sum()
    delta = found.value * np.sqrt(((nats - rate * counts) ** 2).sum()) / counts.sum()
    assert found.stderr == pytest.approx(delta, rel=0.1)
    assert found.high - found.value == pytest.approx(1.96 * delta, rel=0.2)
    assert found.value - found.low == pytest.approx(1.96 * delta, rel=0.2)
    assert generative_perplexity(judge, texts) == found
    assert generative_perplexity(judge, texts, seed=1).stderr != found.stderr


def test_the_interval_of_the_entropy_is_that_of_a_mean() -> None:
    tokens = torch.randint(0, 6, (150, 12), generator=torch.Generator().manual_seed(0))
    found = unigram_entropy(tokens)
    values = [unigram_entropy(row[None]).value for row in tokens]
    error = float(np.std(values)) / math.sqrt(len(values))
    assert found.value == pytest.approx(np.mean(values))
    assert found.stderr == pytest.approx(error, rel=0.1)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.1)


def test_one_sample_has_an_infinite_error() -> None:
    likely = generative_perplexity(table_judge(), ["alone"])
    assert (likely.stderr, likely.low, likely.high) == (math.inf, 0, math.inf)
    entropy = unigram_entropy(torch.tensor([[1, 2]]))
    assert (entropy.stderr, entropy.low, entropy.high) == (math.inf, -math.inf, math.inf)


def test_two_samples_have_three_resamples() -> None:
    """Of 0 and 1 the means are 0, 1/2 and 1, with probabilities 1/4, 1/2 and 1/4."""
    found = bootstrap(Values(torch.tensor([0.0, 1.0]), torch.ones(2)))
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    assert found.stderr == pytest.approx(math.sqrt(1 / 8), rel=0.05)


def test_samples_without_a_number_are_left_out() -> None:
    """The mean and the error are those of the numbers that exist, here 100 of 200; a single one has no error."""
    values = torch.rand(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nothing = torch.zeros(100, dtype=torch.float64)
    found = bootstrap(Values(torch.cat([values, nothing]), torch.cat([torch.ones(100), nothing])))
    assert found.value == pytest.approx(float(values.mean()))
    assert found.stderr == pytest.approx(float(values.std()) / 10, rel=0.1)
    alone = bootstrap(Values(torch.tensor([0.0, 3.0]), torch.tensor([0.0, 1.0])))
    assert (alone.value, alone.stderr, alone.spread) == (3.0, math.inf, (None, None, None))
    with pytest.raises(ValueError, match="none of 2 samples has a number"):
        bootstrap(Values(torch.zeros(2), torch.zeros(2)))


def test_the_shares_of_distinct_ngrams_add_up() -> None:
    tokens = torch.randint(0, 5, (20, 9), generator=torch.Generator().manual_seed(0))
    for n in (1, 2, 3):
        found = distinct_shares(tokens, n)
        shares, counts = found.totals, found.counts
        assert float(shares.sum() / counts.sum()) == pytest.approx(distinct(tokens, n))
        assert counts.tolist() == [10 - n] * 20
    shares = distinct_shares(torch.tensor([[1, 1, 2], [3, 1, 3]]), 1).totals
    assert shares.tolist() == pytest.approx([2 / 3 + 1, 1 / 3 + 1])


def test_entropy_of_known_distributions() -> None:
    rows = torch.tensor([[3, 3, 3, 3], [1, 2, 1, 2], [5, 6, 7, 8]])
    assert unigram_entropy(rows).value == pytest.approx((0 + math.log(2) + math.log(4)) / 3, abs=1e-12)


def test_entropy_and_perplexity_of_the_released_code(golden: Path) -> None:
    with np.load(golden / "misc.npz") as arrays:
        meta = json.loads(str(arrays["__meta__"]))
        entropy = unigram_entropy(torch.from_numpy(arrays["entropy/tokens"]))
        assert entropy.value == pytest.approx(meta["entropy/value"], 1e-6)
        nats = _token_nats(torch.from_numpy(arrays["gen_ppl/logits"]), torch.from_numpy(arrays["gen_ppl/ids"]))
        valid = torch.from_numpy(arrays["gen_ppl/valid_tokens"])
    assert float((nats[valid].sum() / valid.sum()).exp()) == pytest.approx(meta["gen_ppl/value"], 1e-5)


def test_ngrams_of_known_samples() -> None:
    """1 2 1 2 1 has the pairs 12 21 12 21; 3 3 3 3 3 has one pair four times; no n-gram crosses two samples."""
    tokens = torch.tensor([[1, 2, 1, 2, 1], [3, 3, 3, 3, 3]])
    assert distinct(tokens, 1) == 3 / 10
    assert distinct(tokens, 2) == 3 / 8
    assert distinct(tokens, 3) == 3 / 6
    assert self_repetition(tokens, 2) == pytest.approx((2 / 4 + 3 / 4) / 2)
    assert self_repetition(tokens) == pytest.approx((0 / 2 + 1 / 2) / 2)
    same = tokens[:1].repeat(2, 1)
    assert distinct(same, 2) == 2 / 8  # an n-gram of two samples counts once
    assert self_repetition(same, 2) == 2 / 4  # self-repetition is within a sample only


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(1, 4))
def test_ngrams_by_counting(rows: list[list[int]], n: int) -> None:
    grams = [[tuple(row[start : start + n]) for start in range(6 - n + 1)] for row in rows]
    all_rows = [gram for row in grams for gram in row]
    repeated = [sum(gram in row[:place] for place, gram in enumerate(row)) / len(row) for row in grams]
    tokens = torch.tensor(rows)
    assert distinct(tokens, n) == pytest.approx(len(set(all_rows)) / len(all_rows))
    assert self_repetition(tokens, n) == pytest.approx(sum(repeated) / len(repeated))


def test_mauve_is_given_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a replacement for the package."""
    options_given: dict[str, Any] = {}

    def compute_mauve(**options: Any) -> SimpleNamespace:
        options_given.update(options)
        return SimpleNamespace(mauve=np.float64(0.25))

    monkeypatch.setitem(sys.modules, "mauve", SimpleNamespace(compute_mauve=compute_mauve))
    first, second = torch.randn(5, 3), torch.randn(4, 3)
    assert mauve(first, second) == 0.25
    assert np.array_equal(options_given.pop("p_features"), first.numpy())
    assert np.array_equal(options_given.pop("q_features"), second.numpy())
    assert options_given == {"num_buckets": "auto", "seed": 0, "verbose": False}


def test_mauve_of_the_package() -> None:
    """Two clouds: the same one is near 1, a distant one near 0; the seed is fixed."""
    pytest.importorskip("mauve", reason="needs pip install mauve-text")
    source = torch.Generator().manual_seed(0)
    one, same = torch.randn(2, 200, 8, generator=source)
    assert mauve(one, same) > 0.8
    assert mauve(one, same + 20) < 0.1
    assert mauve(one, same) == mauve(one, same)


def test_the_reason_why_there_is_no_mauve(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = table_judge()
    seeing = replace(judge, hidden=judge.logits)

    def why(judge: Judge | None, num: int, references: int) -> str | None:
        real = Samples(torch.zeros(references, 4), ["text"] * references, 0.0, 0.0, "")
        return Sweep(Path("out"), RunSampler("cpu", quiet), quiet, judge, real)._why_no_mauve(num)

    monkeypatch.setitem(sys.modules, "mauve", None)
    assert "needs real text" in str(Sweep(Path("out"), RunSampler("cpu", quiet), quiet, seeing)._why_no_mauve(500))
    assert "needs a judge" in str(why(None, 500, 500))
    assert "hidden states" in str(why(judge, 500, 500))
    assert "here are 99 and 500" in str(why(seeing, 99, 500))
    assert "here are 500 and 99" in str(why(seeing, 500, 99))
    assert "pip install mauve-text" in str(why(seeing, 100, 100))
    monkeypatch.setitem(sys.modules, "mauve", SimpleNamespace())
    assert why(seeing, 100, 100) is None


@pytest.mark.parametrize(
    ("pool", "share", "size"), [(4000, 1.0, 400), (300, 1.0, 400), (1000, 0.1, 600), (60, 1.0, 400)]
)
def test_the_spread_of_the_occupancy_is_that_over_many_sets(pool: int, share: float, size: int) -> None:
    """From sets with few pairs to sets that have every key; with keys of which only a share counts."""
    source = random.Random(0)
    counted = [source.random() < share for _ in range(pool)]
    values, errors = [], []
    for _ in range(300):
        keys = [key if counted[key] else None for key in source.choices(range(pool), k=size)]
        numbers = np.array(occupancy(keys))
        values.append(numbers.mean())
        errors.append(numbers.std() / math.sqrt(size))
    assert np.mean(values) == pytest.approx(sum(counted) * (1 - (1 - 1 / pool) ** size) / size, abs=0.003)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values), rel=0.15, abs=5e-4)


def test_the_occupancy_counts_different_keys() -> None:
    assert sum(occupancy(["a", "b", "a", "a", None])) / 5 == pytest.approx(2 / 5)
    assert occupancy(["a", "b"]) == [1.0, 1.0]
    assert occupancy([]) == []
