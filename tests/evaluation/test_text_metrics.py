"""Measures of samples: exact on tiny cases, errors against what theory says of them; figures and tables of rows."""

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
from support.judges import table_judge

from duality.evaluation.cases import REAL_TEXT, Row
from duality.evaluation.figures import plot_quality, plot_rounds, style
from duality.evaluation.judge import token_nats
from duality.evaluation.tables import columns, details, has_rounds, markdown, remarks
from duality.evaluation.text_metrics import (
    Quality,
    bootstrap,
    distinct,
    generative_perplexity,
    mauve,
    mauve_obstacle,
    quality,
    self_repetition,
    unigram_entropy,
)


def test_misuse_is_refused() -> None:
    judge = table_judge()
    with pytest.raises(ValueError, match="no texts to judge"):
        generative_perplexity(judge, [])
    with pytest.raises(ValueError, match="2 texts and 3 rows"):
        quality(judge, ["a", "b"], torch.zeros(3, 4, dtype=torch.int64))
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
    """Against the delta method, for which the interval is 1.96 errors either way; the seed decides."""
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


def test_one_sample_tells_of_no_spread() -> None:
    likely = generative_perplexity(table_judge(), ["alone"])
    assert (likely.stderr, likely.low, likely.high) == (math.inf, 0, math.inf)
    entropy = unigram_entropy(torch.tensor([[1, 2]]))
    assert (entropy.stderr, entropy.low, entropy.high) == (math.inf, -math.inf, math.inf)


def test_two_samples_have_three_resamples() -> None:
    """Of 0 and 1 the means are 0, 1/2 and 1, with probabilities 1/4, 1/2 and 1/4."""
    found = bootstrap(torch.tensor([0.0, 1.0]), torch.ones(2), lambda mean: mean)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    assert found.stderr == pytest.approx(math.sqrt(1 / 8), rel=0.05)


def test_entropy_of_known_distributions() -> None:
    rows = torch.tensor([[3, 3, 3, 3], [1, 2, 1, 2], [5, 6, 7, 8]])
    assert unigram_entropy(rows).value == pytest.approx((0 + math.log(2) + math.log(4)) / 3, abs=1e-12)


def test_entropy_and_mask_of_the_released_code(golden: Path) -> None:
    with np.load(golden / "misc.npz") as arrays:
        meta = json.loads(str(arrays["__meta__"]))
        entropy = unigram_entropy(torch.from_numpy(arrays["entropy/tokens"]))
        assert entropy.value == pytest.approx(meta["entropy/value"], 1e-6)
        nats = token_nats(torch.from_numpy(arrays["gen_ppl/logits"]), torch.from_numpy(arrays["gen_ppl/ids"]))
        valid = torch.from_numpy(arrays["gen_ppl/valid_tokens"])
    assert float((nats[valid].sum() / valid.sum()).exp()) == pytest.approx(meta["gen_ppl/value"], 1e-5)


def test_quality_has_both_numbers() -> None:
    judge, texts = table_judge(), ["abab", "abcd"]
    tokens = torch.tensor([list(text.encode()) for text in texts])
    likely, entropy = generative_perplexity(judge, texts), unigram_entropy(tokens)
    intervals = ((likely.low, likely.high), (entropy.low, entropy.high))
    assert entropy.value == pytest.approx(1.5 * math.log(2))
    assert quality(judge, texts, tokens) == Quality("table", likely.value, likely.stderr, entropy.value, 2, *intervals)


def test_ngrams_of_known_samples() -> None:
    """1 2 1 2 1 has the pairs 12 21 12 21; 3 3 3 3 3 has one pair four times; across samples no n-gram reaches."""
    tokens = torch.tensor([[1, 2, 1, 2, 1], [3, 3, 3, 3, 3]])
    assert distinct(tokens, 1) == 3 / 10
    assert distinct(tokens, 2) == 3 / 8
    assert distinct(tokens, 3) == 3 / 6
    assert self_repetition(tokens, 2) == pytest.approx((2 / 4 + 3 / 4) / 2)
    assert self_repetition(tokens) == pytest.approx((0 / 2 + 1 / 2) / 2)
    same = tokens[:1].repeat(2, 1)
    assert distinct(same, 2) == 2 / 8  # once said by two samples is still once
    assert self_repetition(same, 2) == 2 / 4  # but neither repeats the other


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(1, 4))
def test_ngrams_by_counting(rows: list[list[int]], n: int) -> None:
    grams = [[tuple(row[start : start + n]) for start in range(6 - n + 1)] for row in rows]
    everything = [gram for row in grams for gram in row]
    repeated = [sum(gram in row[:place] for place, gram in enumerate(row)) / len(row) for row in grams]
    tokens = torch.tensor(rows)
    assert distinct(tokens, n) == pytest.approx(len(set(everything)) / len(everything))
    assert self_repetition(tokens, n) == pytest.approx(sum(repeated) / len(repeated))


def test_mauve_is_given_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package."""
    asked: dict[str, Any] = {}

    def compute_mauve(**options: Any) -> SimpleNamespace:
        asked.update(options)
        return SimpleNamespace(mauve=np.float64(0.25))

    monkeypatch.setitem(sys.modules, "mauve", SimpleNamespace(compute_mauve=compute_mauve))
    first, second = torch.randn(5, 3), torch.randn(4, 3)
    assert mauve(first, second) == 0.25
    assert np.array_equal(asked.pop("p_features"), first.numpy())
    assert np.array_equal(asked.pop("q_features"), second.numpy())
    assert asked == {"num_buckets": "auto", "seed": 0, "verbose": False}


def test_mauve_of_the_package() -> None:
    """Two clouds: the same one is near 1, a distant one near 0; the seed is fixed."""
    pytest.importorskip("mauve", reason="needs pip install mauve-text")
    source = torch.Generator().manual_seed(0)
    one, same = torch.randn(2, 200, 8, generator=source)
    assert mauve(one, same) > 0.8
    assert mauve(one, same + 20) < 0.1
    assert mauve(one, same) == mauve(one, same)


def test_why_there_is_no_mauve(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = table_judge()
    seeing = replace(judge, hidden=judge.logits)
    monkeypatch.setitem(sys.modules, "mauve", None)
    assert "needs a judge" in str(mauve_obstacle(None, 500, 500))
    assert "hidden states" in str(mauve_obstacle(judge, 500, 500))
    assert "here are 99 and 500" in str(mauve_obstacle(seeing, 99, 500))
    assert "here are 500 and 99" in str(mauve_obstacle(seeing, 500, 99))
    assert "pip install mauve-text" in str(mauve_obstacle(seeing, 100, 100))
    monkeypatch.setitem(sys.modules, "mauve", SimpleNamespace())
    assert mauve_obstacle(seeing, 100, 100) is None


def row(label: str, steps: int, gen_ppl: float | None, entropy: float, **more: Any) -> Row:
    """A row with the figures given and some others."""
    known = gen_ppl is not None
    base: dict[str, Any] = {
        "label": label, "run": Path("runs") / label, "steps": steps, "num": 8, "length": 64,
        "judge": "j" if known else None, "gen_ppl": gen_ppl, "stderr": 1.25 if known else None,
        "low": gen_ppl - 2 if gen_ppl is not None else None, "high": gen_ppl + 3 if gen_ppl is not None else None,
        "entropy": entropy, "entropy_low": entropy - 0.1, "entropy_high": entropy + 0.1,
        "distinct_1": 0.1, "distinct_2": 0.2, "distinct_3": 0.3, "self_repetition": 0.04, "mauve": None,
        "nfe": float(steps), "seconds_per_sample": 0.5,
    }  # fmt: skip
    return Row(**{**base, **more})


REAL = row(REAL_TEXT, 0, 30.0, 5.5, run=Path(), sampler="none", tail="none")


def lines_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_has_the_papers_shape() -> None:
    """Steps downwards from the most; a pair of columns for each model; real text stands below, not in it."""
    rows = [row("duo", 8, 198.27, 5.57), row("duo", 16, 122.78, 5.58), row("ar", 16, 40.0, 5.6), REAL]
    assert lines_of(markdown(rows)) == [
        ["steps", "duo: Gen PPL", "duo: entropy", "ar: Gen PPL", "ar: entropy"],
        ["---"] * 5,
        ["16", "122.8 [120.8, 125.8]", "5.58", "40.0 [38.0, 43.0]", "5.60"],
        ["8", "198.3 [196.3, 201.3]", "5.57", "–", "–"],
    ]
    assert remarks(rows)[-1] == "Real text, cut alike (8 pieces of 64): Gen PPL 30.0 [28.0, 33.0], entropy 5.50."
    assert "under j" in remarks(rows)[1]


def test_rounds_are_blocks_of_the_table() -> None:
    """A label may name its round or not; the model that was not distilled is round 0."""
    rows = [
        row("duo", 8, 100.0, 5.0),
        row("duo, round 1", 8, 90.0, 5.1, round=1),
        row("duo", 8, 80.0, 5.2, round=2),
        row("duo", 16, 70.0, 5.2, round=2),
    ]
    assert [line[:4] for line in lines_of(markdown(rows))[2:]] == [
        ["0", "8", "100.0 [98.0, 103.0]", "5.00"],
        ["1", "8", "90.0 [88.0, 93.0]", "5.10"],
        ["2", "16", "70.0 [68.0, 73.0]", "5.20"],
        ["2", "8", "80.0 [78.0, 83.0]", "5.20"],
    ]


def test_settings_that_differ_are_named() -> None:
    rows = [row("duo", 8, 1.0, 5.0), row("duo", 8, 1.0, 5.0, tail="greedy"), row("ar", 8, 1.0, 5.0)]
    assert list(columns(rows)) == ["duo, ancestral tail", "duo, greedy tail", "ar, ancestral tail"]
    rows = [row("duo", 8, 1.0, 5.0, sampler="psi", eta=0.02), row("duo", 8, 1.0, 5.0), REAL]
    assert list(columns(rows)) == ["duo, psi sampler, eta 0.02", "duo, own sampler"]
    other = [row("duo", 8, 1.0, 5.0), row("duo", 8, 1.0, 5.0, judge="k")]
    assert list(columns(other)) == ["duo, read by j", "duo, read by k"]
    with pytest.raises(ValueError, match="a label of its own"):
        columns([row("duo", 8, 1.0, 5.0), row("duo", 8, 2.0, 5.0, run=Path("another"))])


def test_without_a_judge_there_is_entropy() -> None:
    rows = [row("duo", 8, None, 5.0), row(REAL_TEXT, 0, None, 5.5)]
    assert lines_of(markdown(rows))[2] == ["8", "–", "5.00"]
    assert remarks(rows)[-1].endswith("64): entropy 5.50.")
    assert not any("Gen PPL" in line for line in remarks(rows))


def test_details_hold_everything() -> None:
    head, _, first, real = lines_of(details([row("duo, round 2", 8, 10.0, 5.0, round=2, mauve=0.5), REAL]))
    found = dict(zip(head, first))
    assert found["model"] == "duo"
    assert (found["round"], found["Gen PPL"], found["standard error"]) == ("2", "10.0 [8.0, 13.0]", "1.2")
    assert (found["entropy"], found["MAUVE"], found["NFE"]) == ("5.000 [4.900, 5.100]", "0.500", "8.0")
    assert (found["distinct-3"], found["self-repetition"], found["eta"]) == ("0.300", "0.040", "–")
    assert dict(zip(head, real))["MAUVE"] == "–"


def test_figures_are_drawn(tmp_path: Path) -> None:
    """With and without a judge, rounds and real text; files that are pictures."""
    rounds = [
        row("duo", steps, 100.0 / (1 + number), 5.0, round=number or None) for number in range(3) for steps in (8, 64)
    ]
    plot_quality([*rounds, row("ar", 64, 20.0, 5.0), REAL], tmp_path / "steps.png")
    plot_quality([row("duo", 8, None, 5.0)], tmp_path / "alone.png")
    plot_rounds([*rounds, REAL], tmp_path / "rounds.png")
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
    assert has_rounds(rounds)
    with pytest.raises(ValueError, match="no row has a round"):
        plot_rounds([row("duo", 8, 1.0, 5.0)], tmp_path / "none.png")


def test_later_rounds_and_fewer_steps_are_darker() -> None:
    shades = [sum(style(0, place, 4)["color"][:3]) for place in range(4)]
    assert shades == sorted(shades, reverse=True)
    assert len(set(shades)) == 4
    assert style(0, 0, 1) != style(1, 0, 1)
    assert style(0, 0, 1)["ls"] != style(6, 0, 1)["ls"]
