"""Frontiers: quality against diversity over temperature, and the difference of two models at equal diversity.

A lower temperature gives better samples that are more alike. So one point compares temperatures as much as models. A
``Curve`` has the points of one model at several temperatures. ``difference`` compares two models where they are equally
diverse: a curve's quality is linear between its points, sorted by diversity; with several curves of a model, one for
each training seed, its curve is their mean at each temperature.

The 95 % interval is by bootstrap. A resample repeats the whole computation, the choice of the diversity included.

- Samples are resampled with the same indices at all temperatures of a curve, because these have the same sampling
  noise.
- Training seeds are resampled where a model has several (S). Their estimates differ by their samples too, so samples
  are not resampled within them: that would count them twice. With few seeds the percentiles of a bootstrap are too
  narrow; they are widened about the value by sqrt(S / (S - 1)) and by Student's factor for S - 1 degrees of freedom of
  each model with several seeds. A model with one seed adds its samples (the root of the sum of squares). Nothing is
  then known of how much its training seeds differ: the interval is for this trained model.
- The interval is never narrower than that of the samples alone, because few seeds may agree by chance.

The frontiers of a sweep are three files:

    OUT/frontiers.png    a curve for each model, round, number of steps and setting; a point for each temperature
    OUT/frontiers.md     every curve against one of the first model, at equal diversity
    OUT/frontiers.json   the same numbers

A curve is compared with the first model's curve of the same steps and settings, or else with the very first curve.
Quality and diversity are ``gen_ppl`` or ``nats`` (both: the judge's nats per token, the log of Gen PPL), ``entropy``,
``distinct_1``, ``distinct_2``, ``distinct_3``, or a column of a scorer. Gen PPL is interpolated as nats per token, and
its difference is shown as a ratio.

What must hold: a difference depends on the curves and the seed only; equal curves have no difference; the interval
contains the true difference in 95 % of the cases (tests/evaluation/test_frontiers.py simulates it); the table is
computed from stored samples and scores alone, so that ``duality plot`` gives the table of ``duality quality``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from duality.evaluation.metrics import INTERVAL, NORMAL, Values, distinct_shares, entropies, t_quantile
from duality.evaluation.samples import Row, Samples, label_of
from duality.evaluation.scorers import Column
from duality.evaluation.tables import cell, columns, group_rows, score_columns, several_temperatures, table
from duality.files.atomic import file_sha256
from duality.files.kept_scores import FILE, Scores
from duality.files.progress import silent
from duality.noise import Noise

_RESAMPLES = 2000
_BLOCK = 250  # resamples at a time
_SAME = ("steps", "sampler", "eta", "tail", "grid", "top_p", "length", "num", "seed", "judge")

_Draw = Literal["samples", "seeds", "nothing"]  # what of a model is resampled


@dataclass(frozen=True)
class Point:
    """The samples of a model at one temperature."""

    temperature: float
    quality: Values
    diversity: Values

    def __post_init__(self) -> None:
        one, other = len(self.quality.totals), len(self.diversity.totals)
        if one != other:
            raise ValueError(f"quality of {one} samples and diversity of {other}: both must be of the same ones")


@dataclass(frozen=True)
class Curve:
    """One model, one training seed, at several temperatures."""

    label: str
    points: tuple[Point, ...]

    @property
    def known(self) -> dict[float, Point]:
        """The points that have both figures, by temperature; a set without a valid molecule has no novelty."""
        both = (each for each in self.points if each.quality.counts.sum() > 0 and each.diversity.counts.sum() > 0)
        return {each.temperature: each for each in both}


@dataclass(frozen=True)
class _Difference:
    """``value`` = ``first`` - ``second``, the qualities at the diversity ``at``, with its 95 % interval.

    ``clipped``: the wanted diversity is one that not both models have, and ``at`` is the nearest one that both have.
    """

    at: float
    first: float
    second: float
    value: float
    low: float
    high: float
    clipped: bool


def difference(
    first: Sequence[Curve], second: Sequence[Curve], at: float | None = None, *, seed: int = 0
) -> _Difference | None:
    """The quality of the first model minus that of the second where their diversity is ``at``, with its interval.

    Each model has a curve for each training seed. If ``at`` is not given it is the diversity of the second model at the
    temperature nearest to 1. It is moved into the range of diversities that both models have; without one, or without a
    temperature that all curves of a model have, there is no comparison, and the result is None.
    """
    if not first or not second:
        raise ValueError(f"a comparison of {len(first)} curves with {len(second)}: each side needs at least 1")
    seeds, curves = (len(first), len(second)), [[curve.known for curve in arm] for arm in (first, second)]
    shared = [[each for each in arm[0] if all(each in curve for curve in arm)] for arm in curves]
    if not all(shared):
        return None
    nearest = min(range(len(shared[1])), key=lambda place: abs(shared[1][place] - 1.0))

    def compare(drawn: Sequence[_Draw], count: int) -> tuple[Tensor, ...]:
        """In each resample (R,): the diversity, both qualities there, whether it was moved, whether ranges overlap."""
        (y, x), (other_y, other_x) = (
            _mean_curve([[curve[each] for each in known] for curve in arm], part, count, seed, tag)
            for arm, known, part, tag in zip(curves, shared, drawn, "01")
        )
        low, high = torch.maximum(x.amin(1), other_x.amin(1)), torch.minimum(x.amax(1), other_x.amax(1))
        wanted = other_x[:, nearest] if at is None else torch.full_like(low, at)
        overlaps = low <= high
        found = torch.where(overlaps, torch.minimum(torch.maximum(wanted, low), high), (low + high) / 2)
        return found, _interpolate(x, y, found), _interpolate(other_x, other_y, found), found != wanted, overlaps

    found, one, other, clipped, overlaps = compare(("nothing", "nothing"), 1)
    if not overlaps:
        return None
    value = float(one - other)

    def reach(drawn: Sequence[_Draw]) -> tuple[float, float]:
        """How far the percentiles lie below and above the value."""
        _, one, other, _, _ = compare(drawn, _RESAMPLES)
        values = (one - other)[~(one - other).isnan()]
        low, high = values.quantile(torch.tensor(INTERVAL, dtype=torch.float64)).tolist()
        return max(0.0, value - low), max(0.0, high - value)

    down, up = reach(("samples", "samples"))
    if max(seeds) > 1:
        between = reach(["seeds" if count > 1 else "nothing" for count in seeds])
        within = reach(["nothing" if count > 1 else "samples" for count in seeds])
        wider = [math.hypot(_widen_by(seeds) * each, other) for each, other in zip(between, within)]
        down, up = max(down, wider[0]), max(up, wider[1])
    return _Difference(float(found), float(one), float(other), value, value - down, value + up, bool(clipped))


def _widen_by(seeds: Sequence[int]) -> float:
    """How much wider than its percentiles the interval of a bootstrap over these numbers of seeds has to be."""
    freedom = sum(count - 1 for count in seeds)
    return t_quantile(freedom) / NORMAL * max(math.sqrt(count / (count - 1)) for count in seeds if count > 1)


def _interpolate(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """The quality (R,) of curves (R, P), diversity ``x`` and quality ``y``, where their diversity is ``at`` (R,).

    It is linear between points, and constant beyond the first and the last.
    """
    if y.shape[1] == 1:
        return y[:, 0]
    x, order = x.sort(1)
    y = y.gather(1, order)
    right = torch.searchsorted(x.contiguous(), at[:, None]).clamp(1, x.shape[1] - 1)
    (x0, x1), (y0, y1) = ((each.gather(1, right - 1)[:, 0], each.gather(1, right)[:, 0]) for each in (x, y))
    gap = x1 - x0
    share = torch.where(gap > 0, (at - x0) / gap.where(gap > 0, 1.0), 0.5).clamp(0, 1)
    # a resample without any number has no figure; sorting would hide it
    return torch.lerp(y0, y1, share).where(~(x.isnan() | y.isnan()).any(1), torch.nan)


def _mean_curve(arm: Sequence[Sequence[Point]], drawn: _Draw, count: int, seed: int, tag: str) -> Tensor:
    """The mean of a model's curves in ``count`` resamples of what is ``drawn``: quality and diversity (2, count, P).

    Points of a curve with as many samples share their indices.
    """
    figures, weights = [], torch.ones(len(arm), count, dtype=torch.float64)
    for place, points in enumerate(arm):
        if drawn == "samples":
            blocks = [
                Noise.of(seed, 0, rows).fold("frontier").fold(f"{tag} {place}")
                for rows in torch.split(torch.arange(count), _BLOCK)
            ]
            figures.append(torch.cat([_figures(points, block) for block in blocks], 1))
        else:
            figures.append(_figures(points, None).expand(-1, count, -1))
    if drawn == "seeds":
        noise = Noise.of(seed, 0, torch.arange(count)).fold("training seeds").fold(tag)
        chosen = noise.integers("curves", len(arm), len(arm))
        weights = torch.stack([(chosen == place).sum(1).double() for place in range(len(arm))])
    return (torch.stack(figures) * weights[:, None, :, None]).sum(0) / weights.sum(0)[:, None]


def _figures(points: Sequence[Point], noise: Noise | None) -> Tensor:
    """Quality and diversity of points in R resamples of their samples, one for each key of ``noise``: (2, R, P).

    Without noise R is 1, and every sample is there once. A figure is NaN where only samples without a number are drawn.
    """
    weights = {}  # how often each of N samples is in each resample: (R, N)
    for size in {len(each.quality.totals) for each in points}:
        chosen = torch.arange(size)[None] if noise is None else noise.integers(f"samples of {size}", size, size)
        once = torch.ones(chosen.shape, dtype=torch.float64)
        weights[size] = torch.zeros_like(once).scatter_add_(1, chosen, once)

    def figure(values: Values) -> Tensor:
        drawn = weights[len(values.totals)]
        return (drawn @ values.totals.double()) / (drawn @ values.counts.double())

    return torch.stack([torch.stack([figure(each.quality), figure(each.diversity)]) for each in points], 2)


# --- the frontiers of a sweep


@dataclass(frozen=True)
class _Comparison:
    """A curve against another one, by their labels; ``difference`` is None if no diversity is common to both."""

    label: str
    against: str
    difference: _Difference | None


@dataclass(frozen=True)
class Frontiers:
    """The curves of a sweep with their two measures, the first row of each curve, the comparisons, and all rows."""

    quality: str
    diversity: str
    curves: tuple[Curve, ...]
    settings: tuple[Row, ...]
    comparisons: tuple[_Comparison, ...]
    rows: tuple[Row, ...]

    def markdown(self) -> str:
        """The comparisons as a table, and what it means."""
        difference_name = "ratio" if self.quality == "gen_ppl" else "difference"
        lines = [
            f"Frontiers: {self.quality} against {self.diversity} over temperature. At equal {self.diversity}, linear "
            f"between temperatures; in brackets the 95 % interval of the {difference_name}, by a bootstrap over "
            "samples."
        ]
        if any(each.difference is not None and each.difference.clipped for each in self.comparisons):
            lines.append("(moved): the nearest value that both curves have to that of the other at temperature 1.")
        missing = sum(len(curve.points) - len(curve.known) for curve in self.curves)
        if missing:
            lines.append(f"{missing} points are left out: no sample has a number there.")
        if self.comparisons:
            head = ["model", "against", self.diversity, self.quality, "of the other", difference_name, "it is"]
            lines.insert(0, table([head, *(self._cells(each) for each in self.comparisons)]))
        return "\n".join(lines) + "\n"

    def _cells(self, comparison: _Comparison) -> list[str]:
        """A comparison as text."""
        found = comparison.difference
        if found is None:
            return [comparison.label, comparison.against, "none in common", "–", "–", "–", "–"]
        shown, spec = (math.exp, ".1f") if self.quality == "gen_ppl" else (float, ".3f")
        figures = [f"{shown(each):{spec}}" for each in (found.first, found.second)]
        spread = cell((shown(found.value), shown(found.low), shown(found.high)), ".3f")
        word = "higher" if found.low > 0 else "lower" if found.high < 0 else "undecided"
        where = f"{found.at:.3f}{' (moved)' * found.clipped}"
        return [comparison.label, comparison.against, where, *figures, spread, word]

    def to_json(self) -> dict[str, object]:
        """The measures and the comparisons."""
        comparisons = [asdict(each) for each in self.comparisons]
        return {"quality": self.quality, "diversity": self.diversity, "comparisons": comparisons}


def has_frontiers(rows: Sequence[Row]) -> bool:
    """Whether there are frontiers to draw: more than one temperature, and a measure of quality."""
    return several_temperatures(rows) and any(row.judge is not None or row.scores for row in rows)


def frontiers(places: Mapping[Row, Path], quality: str | None = None, diversity: str | None = None) -> Frontiers:
    """The frontiers of rows, each in the folder of its sweep; every curve but the first is compared."""
    rows = list(places)
    if not (quality and diversity):
        usual = _default_measures(rows)
        quality, diversity = quality or usual[0], diversity or usual[1]
    curves = curves_of({row: out for row, out in places.items() if not row.real}, quality, diversity)
    settings, comparisons = tuple(same[0] for same in _curve_rows(rows).values()), []
    first = [(curve, row) for curve, row in zip(curves, settings, strict=True) if row.model == settings[0].model]
    for curve, own in zip(curves[1:], settings[1:]):
        alike = [each for each, row in first if all(getattr(row, name) == getattr(own, name) for name in _SAME)]
        other = alike[0] if alike and own.model != settings[0].model else curves[0]
        comparisons.append(_Comparison(curve.label, other.label, difference([curve], [other])))
    return Frontiers(quality, diversity, tuple(curves), settings, tuple(comparisons), tuple(rows))


def _default_measures(rows: Sequence[Row]) -> tuple[str, str]:
    """Quality and diversity: the first column of a scorer, else Gen PPL; novelty if it was measured, else entropy."""
    scores = score_columns(rows)
    if not scores and all(row.judge is None for row in rows):
        raise ValueError("no measure of quality: name a judge (--judge) or a scorer (--score)")
    return scores[0] if scores else "gen_ppl", "novelty" if "novelty" in scores else "entropy"


def _curve_rows(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that differ in temperature alone, by label: the model with its settings, its round and steps."""
    found: dict[str, list[Row]] = {}
    for name, column in columns(rows, ("temperature",)).items():
        for same in group_rows(column, lambda row: (row.round or 0, row.steps)):
            label = f"{label_of(name, same[0].round)}, {same[0].steps} step{'s' * (same[0].steps != 1)}"
            found[label] = sorted(same, key=lambda row: row.temperature)
    return found


def curves_of(places: Mapping[Row, Path], quality: str, diversity: str) -> list[Curve]:
    """The curves of rows from their samples and scores, which are in the folder of a sweep for each row."""
    scores = {out: Scores.read(out / FILE, silent) for out in set(places.values())}

    def point(row: Row) -> Point:
        out = places[row]
        facts = Samples.read(out, row), file_sha256(row.path(out)), scores[out]
        return Point(row.temperature, *(_values_of(row, name, *facts) for name in (quality, diversity)))

    return [Curve(label, tuple(map(point, same))) for label, same in _curve_rows(list(places)).items()]


def _values_of(row: Row, name: str, samples: Samples, checksum: str, scores: Scores) -> Values:
    """The numbers of a row's samples that the measure ``name`` is made of."""
    if name in ("gen_ppl", "nats") and row.judge is not None:
        pairs = cast(list[tuple[float, int]], scores.find(row.judge, checksum))
        return Values(*torch.tensor(pairs, dtype=torch.float64).unbind(-1))
    if name == "entropy":
        return Values.of_column(entropies(samples.tokens).tolist())
    if name in ("distinct_1", "distinct_2", "distinct_3"):
        return distinct_shares(samples.tokens, int(name[-1]))
    if name in row.scores:
        kept = cast(dict[str, Column], scores.find(row.scores[name].scorer, checksum))
        return Values.of_column(kept[name])
    judged = ["gen_ppl"] if row.judge is not None else []
    choices = ", ".join([*judged, "entropy", "distinct_1", "distinct_2", "distinct_3", *row.scores])
    raise ValueError(f"{row.label} was not measured by {name!r}: choose from {choices}")
