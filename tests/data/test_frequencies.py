"""The nats per token that counts of a text give: the formulas, written out token by token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest

from duality.data import frequencies
from duality.data.frequencies import nats_of_counts
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.tokenizers.tokenizer import ByteTokenizer

TRAIN = ["abracadabra", "banana", "", "cab"]
HELD_OUT = ["bandana", "abzz", "q"]  # with tokens and pairs that were not seen


def rows_of(sequences: Sequences) -> list[list[int]]:
    """The real tokens of each sequence."""
    every = range(len(sequences))
    (ids, _), real = sequences.rows(every), sequences.real(every)
    return [row[mask].tolist() for row, mask in zip(ids, real, strict=True)]


def expected(rows: list[list[int]], held_out: list[list[int]], states: int = 257) -> tuple[float, float]:
    """Both numbers of held-out rows, with dictionaries and loops over the ``rows`` that are counted."""
    counts = Counter(token for row in rows for token in row)
    pairs = Counter(pair for row in rows for pair in zip(row, row[1:]))
    visits, followers = Counter(token for row in rows for token in row[:-1]), Counter(a for a, _ in pairs)

    def alone(b: int) -> float:
        return (counts[b] + len(counts) / states) / (counts.total() + len(counts))

    def behind(a: int, b: int) -> float:
        return (pairs[a, b] + followers[a] * alone(b)) / (visits[a] + followers[a]) if visits[a] else alone(b)

    assert math.isclose(sum(map(alone, range(states))), 1)
    assert math.isclose(sum(behind(ord("a"), b) for b in range(states)), 1)
    tokens, both = 0.0, 0.0
    for row in held_out:
        tokens -= sum(math.log(alone(b)) for b in row)
        both -= math.log(alone(row[0])) + sum(math.log(behind(a, b)) for a, b in zip(row, row[1:]))
    count = sum(map(len, held_out))
    return tokens / count, both / count


@pytest.mark.parametrize("packing", ["wrap", "document", "modelled"])
@pytest.mark.parametrize("length", [1, 4, 64])
def test_counts_give_what_the_formulas_say(make_store: Callable[..., TokenStore], packing: str, length: int) -> None:
    how = {"packing": "document", "padding": "model", "separator": ByteTokenizer.separator}
    how = {"packing": packing} if packing != "modelled" else how
    train, held_out = (Sequences(make_store(texts), length, **how) for texts in (TRAIN, HELD_OUT))  # type: ignore[arg-type]
    assert nats_of_counts(train, held_out) == pytest.approx(expected(rows_of(train), rows_of(held_out)), rel=1e-12)


def test_of_much_text_some_is_counted_and_of_a_validation_what_was_measured(
    make_store: Callable[..., TokenStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, held_out = (Sequences(make_store([text]), 3) for text in ("aaabbbcccddd", "abaabbabb"))
    monkeypatch.setattr(frequencies, "MOST", 6)
    rows = rows_of(train)
    assert train.spread(2).tolist() == [0, 2]
    wanted = expected([rows[0], rows[2]], rows_of(held_out)[:1])
    assert nats_of_counts(train, held_out, limit=1) == pytest.approx(wanted, rel=1e-12)
