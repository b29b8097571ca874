"""Frontiers: known curves with known differences, the coverage of intervals, curves from stored samples and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.judges import table_judge
from support.runs import quiet
from torch import Tensor

from duality.evaluation import frontiers
from duality.evaluation.frontiers import (
    Curve,
    Point,
    _curve_rows,
    _Difference,
    _interpolate,
    _values_of,
    _widen_by,
    curves_of,
    difference,
)
from duality.evaluation.metrics import Values, distinct, entropies
from duality.evaluation.samples import Case, Row, Samples
from duality.evaluation.scorers import FunctionScorer
from duality.evaluation.sweep import Advance, RunSampler, Sweep
from duality.files.kept_scores import Scores

NUM = 40


def constant(value: float, num: int = NUM) -> Values:
    """Samples that all have the same number."""
    return Values(torch.full((num,), value, dtype=torch.float64), torch.ones(num, dtype=torch.float64))


def known(*points: tuple[float, float, float], label: str = "model") -> Curve:
    """A curve without noise, from (temperature, diversity, quality)."""
    return Curve(label, tuple(Point(t, constant(quality), constant(diversity)) for t, diversity, quality in points))


LINE = known((0.6, 0.2, 0.9), (0.8, 0.4, 0.7), (1.0, 0.6, 0.5))  # quality = 1.1 - diversity
ABOVE = known((0.6, 0.1, 1.1), (0.8, 0.35, 0.85), (1.0, 0.65, 0.55))  # quality = 1.2 - diversity


def exactly(found: _Difference | None) -> _Difference:
    assert found is not None
    return found


def test_known_lines_differ_by_what_is_between_them() -> None:
    found = exactly(difference([ABOVE], [LINE]))
    assert found.at == pytest.approx(0.6)  # where the second is at temperature 1
    assert (found.first, found.second) == pytest.approx((0.6, 0.5))
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert not found.clipped
    for at in (0.2, 0.25, 0.37, 0.6):
        assert exactly(difference([ABOVE], [LINE], at)).value == pytest.approx(0.1)
        assert exactly(difference([LINE], [ABOVE], at)).value == pytest.approx(-0.1)


def test_points_are_sorted_by_diversity_and_joined_by_lines() -> None:
    bent = known((1.0, 0.5, 0.0), (0.6, 0.1, 4.0), (0.8, 0.3, 1.0))
    flat = known((1.0, 0.9, 0.0), (0.5, 0.0, 0.0))
    for at, value in ((0.1, 4.0), (0.2, 2.5), (0.3, 1.0), (0.4, 0.5), (0.5, 0.0)):
        assert exactly(difference([bent], [flat], at)).value == pytest.approx(value)


def test_the_diversity_is_moved_into_the_common_range() -> None:
    found = exactly(difference([LINE], [ABOVE]))  # the second is at 0.65 at temperature 1, the first ends at 0.6
    assert found.clipped
    assert (found.at, found.value) == pytest.approx((0.6, -0.1))
    assert exactly(difference([LINE], [ABOVE], 0.0)).at == pytest.approx(0.2)
    assert difference([LINE], [known((1.0, 0.7, 0.4), (0.9, 0.8, 0.3))]) is None
    alone = known((1.0, 0.5, 0.0))
    assert exactly(difference([ABOVE], [alone])).value == pytest.approx(0.7)
    assert difference([alone], [known((1.0, 0.4, 0.0))]) is None


def test_several_seeds_are_averaged() -> None:
    """Means of lines that are 0.1 and 0.3 above; the interval has the spread between seeds, with Student's factor."""
    higher = known((0.6, 0.1, 1.3), (1.0, 0.65, 0.75))
    found = exactly(difference([ABOVE, higher], [LINE]))
    assert found.value == pytest.approx(0.2)
    assert found.first == pytest.approx(0.7)
    assert found.high - found.value == pytest.approx(0.1 * math.sqrt(2) * 12.706 / 1.96, rel=1e-3)
    same = exactly(difference([ABOVE, ABOVE, ABOVE], [LINE, LINE]))
    assert (same.value, same.low, same.high) == pytest.approx((0.1, 0.1, 0.1))


def test_the_widening_is_students() -> None:
    assert _widen_by([3, 3]) == pytest.approx(2.776 / 1.96 * math.sqrt(3 / 2))
    assert _widen_by([1, 2]) == pytest.approx(12.706 / 1.96 * math.sqrt(2))
    assert _widen_by([30, 30]) == pytest.approx(2.0017 / 1.96 * math.sqrt(30 / 29), rel=1e-3)


def noisy(shift: float, source: torch.Generator, num: int = 100) -> Curve:
    """Valid and novel samples: validity 0.9 - 0.7 (novelty - 0.2) + shift; the same noise at all temperatures."""
    valid_noise, novel_noise = torch.rand(2, num, generator=source, dtype=torch.float64)
    points = []
    for temperature in (0.6, 0.8, 1.0):
        novelty = 0.2 + 1.2 * (temperature - 0.6)
        valid = (valid_noise < 0.9 - 0.7 * (novelty - 0.2) + shift).double()
        novel = (novel_noise < novelty).double() * valid
        points.append(Point(temperature, Values(valid, torch.ones(num).double()), Values(novel, valid)))
    return Curve("noisy", tuple(points))


@pytest.mark.parametrize(
    ("seeds", "between", "least"), [((1, 1), 0.0, 0.9), ((3, 3), 0.08, 0.9), ((1, 3), 0.04, 0.92), ((2, 2), 0.0, 0.95)]
)
def test_intervals_contain_the_true_difference(
    seeds: tuple[int, int], between: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation of 60 experiments; ``between`` is the spread of the training seeds of a model with several."""
    monkeypatch.setattr(frontiers, "_RESAMPLES", 250)  # fast, and enough for one experiment of many
    source, hits = torch.Generator().manual_seed(5), 0

    def arm(count: int, shift: float) -> list[Curve]:
        spread = torch.randn(count, generator=source) * between * (count > 1)
        return [noisy(shift + float(each), source) for each in spread]

    for _ in range(60):
        found = exactly(difference(arm(seeds[0], 0.05), arm(seeds[1], 0.0)))
        hits += found.low <= 0.05 <= found.high
    assert hits / 60 >= least


def test_the_interval_shrinks_with_samples_and_is_that_of_two_means() -> None:
    """At the last point of both curves the difference is one of two shares: 1.96 sqrt(2 p (1 - p) / N) at least."""
    source = torch.Generator().manual_seed(1)
    widths = dict.fromkeys((100, 1600), 0.0)
    for num in widths:
        found = exactly(difference([noisy(0.0, source, num)], [noisy(0.0, source, num)]))
        widths[num] = found.high - found.low
    assert widths[1600] < 0.4 * widths[100]
    assert widths[1600] > 0.9 * 2 * 1.96 * math.sqrt(2 * 0.5 * 0.5 / 1600)


def test_equal_arms_are_undecided_and_the_result_is_determined() -> None:
    curve = noisy(0.0, torch.Generator().manual_seed(2))
    found = exactly(difference([curve], [curve]))
    assert found.value == 0
    assert found.low < 0 < found.high
    assert difference([curve], [curve]) == found
    assert exactly(difference([curve], [curve], seed=1)).low != found.low


def test_points_without_a_number_are_left_out() -> None:
    nothing = Values(torch.zeros(NUM).double(), torch.zeros(NUM).double())
    curve = Curve("part", (*LINE.points, Point(1.2, constant(0.0), nothing)))
    assert len(curve.known) == 3
    assert exactly(difference([ABOVE], [curve])).value == pytest.approx(0.1)
    assert difference([ABOVE], [Curve("none", curve.points[-1:])]) is None
    rare = Values(torch.eye(NUM)[0].double(), torch.eye(NUM)[0].double())  # one sample has a number
    found = exactly(difference([LINE], [Curve("rare", (Point(1.0, constant(0.5), rare), *LINE.points[:1]))], 0.3))
    assert math.isfinite(found.low)


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a comparison of 0 curves with 1"):
        difference([], [LINE])
    with pytest.raises(ValueError, match=r"both must be \(N,\), N at least 1"):
        Values(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="quality of 2 samples and diversity of 3"):
        Point(1.0, constant(0.0, 2), constant(0.0, 3))


def test_interpolation_against_a_loop() -> None:
    """Random curves, many at a time, against one curve at a time by hand."""
    source = torch.Generator().manual_seed(3)
    x, y = torch.rand(2, 30, 5, generator=source, dtype=torch.float64)
    at = torch.rand(30, generator=source, dtype=torch.float64)
    found = _interpolate(x, y, at)

    def by_hand(xs: Tensor, ys: Tensor, where: float) -> float:
        pairs: list[tuple[float, float]] = sorted(zip(xs.tolist(), ys.tolist()))
        if where <= pairs[0][0]:
            return pairs[0][1]
        for (left, low), (right, high) in zip(pairs, pairs[1:]):
            if left <= where <= right:
                return low + (high - low) * (where - left) / (right - left)
        return pairs[-1][1]

    for row in range(30):
        assert float(found[row]) == pytest.approx(by_hand(x[row], y[row], float(at[row])))


# Curves from the folder of a sweep.


class Letters(RunSampler):
    """Samples of letters; the temperature is the number of different ones."""

    def weights(self, case: Case) -> str:
        return "step 1"

    def sample(self, case: Case, advance: Advance) -> Samples:
        source = torch.Generator().manual_seed(case.seed)
        count = round(10 * case.temperature)
        tokens = torch.randint(97, 97 + count, (case.num, case.length), generator=source)
        texts = [bytes(row).decode() for row in tokens.tolist()]
        texts[0] = ""  # cut at an end-of-text
        return Samples(tokens, texts, 0.0, 1.0, "step 1")


def vowels(texts: Sequence[str]) -> dict[str, list[float]]:
    return {"vowels": [sum(map(text.count, "aeiou")) / len(text) if text else math.nan for text in texts]}


@pytest.fixture
def measured(tmp_path: Path) -> list[Row]:
    case = Case(label="a", run=Path("a"), steps=4, num=6, length=12)
    other = replace(case, label="b", run=Path("b"))
    cases = [replace(each, temperature=t, steps=s) for each in (case, other) for s in (4, 8) for t in (0.5, 1.0)]
    scorers = [FunctionScorer("vowels", vowels)]
    return Sweep(tmp_path, Letters("cpu", quiet), quiet, table_judge(), None, scorers).measure(cases)


def test_curves_are_made_of_rows_that_differ_in_temperature(measured: list[Row]) -> None:
    found = _curve_rows(measured)
    assert list(found) == ["a, 4 steps", "a, 8 steps", "b, 4 steps", "b, 8 steps"]
    assert all([row.temperature for row in same] == [0.5, 1.0] for same in found.values())


def test_figures_of_curves_are_those_of_rows(measured: list[Row], tmp_path: Path) -> None:
    """The ratio of sums is the measure of the row, for every measure."""
    expected: dict[str, Callable[[Row], float | None]] = {
        "gen_ppl": lambda row: math.log(row.gen_ppl or 0),
        "nats": lambda row: math.log(row.gen_ppl or 0),
        "entropy": lambda row: row.entropy,
        "distinct_1": lambda row: row.distinct_1,
        "distinct_2": lambda row: row.distinct_2,
        "distinct_3": lambda row: row.distinct_3,
        "vowels": lambda row: row.scores["vowels"].value,
    }
    for name, value in expected.items():
        for curve in curves_of(dict.fromkeys(measured, tmp_path), name, "entropy"):
            for point, row in zip(curve.points, _curve_rows(measured)[curve.label], strict=True):
                assert float(point.quality.totals.sum() / point.quality.counts.sum()) == pytest.approx(value(row))
                assert point.temperature == row.temperature
    first = curves_of(dict.fromkeys(measured, tmp_path), "vowels", "gen_ppl")[0].points[0]
    assert first.quality.counts.tolist() == [0, 1, 1, 1, 1, 1]
    assert first.diversity.counts.tolist()[:2] == [0, 12]


def test_curves_need_their_samples_and_scores(measured: list[Row], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a was not measured by 'novelty': choose from gen_ppl, entropy, .*vowels"):
        curves_of(dict.fromkeys(measured, tmp_path), "vowels", "novelty")
    (tmp_path / "scores.json").unlink()
    with pytest.raises(ValueError, match="has no scores of table for these samples: measure them again"):
        curves_of(dict.fromkeys(measured, tmp_path), "gen_ppl", "entropy")
    with pytest.raises(ValueError, match="no samples of a in"):
        curves_of(dict.fromkeys(measured, tmp_path / "elsewhere"), "entropy", "entropy")


def test_distinct_has_a_share_for_each_sample(measured: list[Row], tmp_path: Path) -> None:
    tokens = torch.tensor([[1, 2, 1, 2], [1, 2, 3, 4]])
    samples = Samples(tokens, ["", ""], 0.0, 0.0, "")
    found = _values_of(measured[0], "distinct_2", samples, "", Scores(tmp_path, {}))
    assert found.totals.tolist() == pytest.approx([2 / 3 + 1, 1 / 3 + 2])
    assert float(found.totals.sum() / found.counts.sum()) == distinct(tokens, 2)
    entropy = _values_of(measured[0], "entropy", samples, "", Scores(tmp_path, {}))
    assert torch.equal(entropy.totals, entropies(tokens))
