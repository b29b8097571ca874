"""The scorer of prose: its n-gram model is a distribution, and its numbers say what they should of known sets."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from duality.evaluation.prose import NGrams, Prose
from duality.evaluation.scorers import ScorerContext, find_scorer, score_texts, summary

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "that", "dog", "by", "our", "red", "door", "in", "may"]


def texts_of(source: random.Random, count: int, words: list[str] = WORDS) -> list[str]:
    """Texts of ten words that follow each other by chance, the first ones more often."""
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [" ".join(source.choices(words, weights, k=10)) for _ in range(count)]


def scorer(source: random.Random) -> Prose:
    found = find_scorer("prose", ScorerContext(tuple, held_out_texts=lambda: texts_of(source, 100)))
    assert isinstance(found, Prose)
    return found


@pytest.mark.parametrize("before", [b"", b"\n", b"the ca", b"never seen", b"\xff\xfe"])
def test_the_probabilities_behind_a_context_add_up_to_one(before: bytes) -> None:
    model = NGrams.of(["the cat sat", "the car", "é"])
    assert math.fsum(model.prob(byte, before) for byte in range(256)) == pytest.approx(1, abs=1e-12)


def test_without_texts_every_byte_is_as_likely() -> None:
    assert NGrams.of([]).nats(b"abc") == pytest.approx(math.log(256))


def test_an_estimate_by_hand() -> None:
    """After "a" came b twice and the line end once: two kinds in three, and below it the counts without a context."""
    model = NGrams.of(["ab", "ab", "a"])
    below = (2 + 3 / 256) / (8 + 3)  # of b: 2 of 8 bytes, of three kinds
    assert model.prob(ord("b"), b"a") == pytest.approx((2 + 2 * below) / (3 + 2))


def test_repetition_is_between_texts() -> None:
    texts = ["a b c d e", "x a b c d", "p q r s p q r s", "a b"]
    assert Prose(ScorerContext(tuple, held_out_texts=lambda: ["x"]))(texts)["repetition"] == [0.5, 0.5, 0.0, None]


def test_likely_words_alone_raise_the_reverse_nats() -> None:
    """A set of the most frequent words repeats itself more, and foretells real text worse than real text does."""
    source = random.Random(0)
    prose = scorer(source)
    sets = texts_of(source, 200), texts_of(source, 200, WORDS[:4])
    real, narrow = ({name: summary("", own) for name, own in score_texts(prose, each).items()} for each in sets)
    for name in ("repetition", "reverse nats"):
        low, high = narrow[name].low, real[name].high
        assert low is not None
        assert high is not None
        assert low > high


def test_the_spread_of_the_reverse_nats_is_that_over_many_sets() -> None:
    source = random.Random(1)
    prose = scorer(source)
    values, errors = [], []
    for _ in range(40):
        numbers = [value or 0.0 for value in prose(texts_of(source, 60))["reverse nats"]]
        mean = math.fsum(numbers) / len(numbers)
        values.append(mean)
        errors.append(math.fsum((each - mean) ** 2 for each in numbers) / len(numbers) ** 2)
    centre = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((each - centre) ** 2 for each in values) / (len(values) - 1))
    assert math.sqrt(math.fsum(errors) / len(errors)) == pytest.approx(spread, rel=0.4)


def test_a_run_without_held_out_text_is_refused() -> None:
    with pytest.raises(ValueError, match="the first run has none"):
        Prose(ScorerContext(tuple))(["a"])


def test_counts_are_of_all_contexts() -> None:
    assert NGrams.of(["aa"]).counts[b""] == Counter({ord("a"): 2, ord("\n"): 1})
