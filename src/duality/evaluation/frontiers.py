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

What must hold: a difference depends on the curves and the seed only; equal curves have no difference; the interval
contains the true difference in 95 % of the cases (tests/evaluation/test_frontiers.py simulates it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from duality.evaluation.metrics import INTERVAL, distinct_shares, entropies
from duality.evaluation.scorers import Column, totals_and_counts
from duality.evaluation.statistics import NORMAL, t_quantile
from duality.evaluation.sweep.samples import Row, Samples, stored_samples
from duality.evaluation.sweep.sweep import sample_path
from duality.evaluation.tables import TEMPERATURE, columns, grouped, round_of
from duality.files.atomic import file_sha256
from duality.files.kept_scores import FILE, Scores
from duality.files.progress import silent
from duality.noise import Noise

RESAMPLES = 2000
_BLOCK = 250  # resamples at a time

Draw = Literal["samples", "seeds", "whole"]
Verdict = Literal["shows", "contradicts", "undecided at this budget"]


@dataclass(frozen=True)
class Values:
    """Numbers of samples (N,) whose ratio of sums is a figure; a sample with a count of 0 has no number."""

    totals: Tensor
    counts: Tensor

    def __post_init__(self) -> None:
        if self.totals.ndim != 1 or self.totals.shape != self.counts.shape or not len(self.totals):
            raise ValueError(
                f"totals of shape {tuple(self.totals.shape)}, counts of {tuple(self.counts.shape)}: both must be (N,), "
                "N at least 1"
            )

    @property
    def exists(self) -> bool:
        """Whether any sample has a number."""
        return bool(self.counts.sum() > 0)

    def figures(self, weights: Tensor) -> Tensor:
        """The figure with weights (R, N) of the samples: (R,); NaN where only samples without a number have weight."""
        return (weights @ self.totals.double()) / (weights @ self.counts.double())


@dataclass(frozen=True)
class Point:
    """The samples of a model at one temperature."""

    temperature: float
    quality: Values
    diversity: Values

    def __post_init__(self) -> None:
        sizes = len(self.quality.totals), len(self.diversity.totals)
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"quality of {sizes[0]} samples and diversity of {sizes[1]}: both must be of the same ones"
            )


@dataclass(frozen=True)
class Curve:
    """One model, one training seed, at several temperatures."""

    label: str
    points: tuple[Point, ...]

    @property
    def known(self) -> tuple[Point, ...]:
        """The points that have both figures; a set without a valid molecule has no novelty."""
        return tuple(point for point in self.points if point.quality.exists and point.diversity.exists)


@dataclass(frozen=True)
class Difference:
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


@dataclass(frozen=True)
class Figures:
    """The figures of a curve in R resamples: quality and diversity (R, P) at ``temperatures``."""

    temperatures: tuple[float, ...]
    quality: Tensor
    diversity: Tensor

    def at_temperature(self, temperature: float) -> Tensor:
        """The diversity (R,) at the nearest temperature that there is."""
        gaps = [abs(each - temperature) for each in self.temperatures]
        return self.diversity[:, gaps.index(min(gaps))]

    def repeated(self, count: int) -> Figures:
        """The same figures in ``count`` resamples."""
        return Figures(self.temperatures, self.quality.expand(count, -1), self.diversity.expand(count, -1))

    def quality_at(self, diversity: Tensor) -> Tensor:
        """The quality (R,) at given diversities (R,): linear between points, constant beyond the first and the last."""
        if self.quality.shape[1] == 1:
            return self.quality[:, 0]
        x, order = self.diversity.sort(1)
        y = self.quality.gather(1, order)
        right = torch.searchsorted(x.contiguous(), diversity[:, None]).clamp(1, x.shape[1] - 1)
        (x0, x1), (y0, y1) = ((each.gather(1, right - 1)[:, 0], each.gather(1, right)[:, 0]) for each in (x, y))
        gap = x1 - x0
        share = torch.where(gap > 0, (diversity - x0) / gap.where(gap > 0, 1.0), 0.5).clamp(0, 1)
        # a resample without any number has no figure; sorting would hide it
        found = torch.lerp(y0, y1, share)
        return found.where(~(self.diversity.isnan() | self.quality.isnan()).any(1), torch.nan)


Arm = list[tuple[Figures, Tensor]]  # each curve, and (R,) how often a resample of training seeds has it


def difference(
    first: Sequence[Curve], second: Sequence[Curve], at: float | None = None, *, seed: int = 0
) -> Difference | None:
    """The quality of the first model minus that of the second where their diversity is ``at``, with its interval.

    Each model has a curve for each training seed. If ``at`` is not given it is the diversity of the second model at the
    temperature nearest to 1. It is moved into the range of diversities that both models have; without one, or without a
    temperature that all curves of a model have, there is no comparison, and the result is None.
    """
    if not first or not second:
        raise ValueError(f"a comparison of {len(first)} curves with {len(second)}: each side needs at least 1")
    arms = (first, second)
    if not all(shared_temperatures(arm) for arm in arms):
        return None
    plain = [[(whole(curve), torch.ones(1, dtype=torch.float64)) for curve in arm] for arm in arms]
    found, one, other, clipped, overlaps = (part[0] for part in compared(plain[0], plain[1], at))
    if not overlaps:
        return None
    value = float(one - other)
    down, up = spread(arms, ("samples", "samples"), value, at, seed)
    seeds = [len(arm) for arm in arms]
    if max(seeds) > 1:
        several: list[Draw] = ["seeds" if count > 1 else "whole" for count in seeds]
        single: list[Draw] = ["whole" if count > 1 else "samples" for count in seeds]
        between, within = (spread(arms, drawn, value, at, seed) for drawn in (several, single))
        wider = [math.hypot(widening(seeds) * one, other) for one, other in zip(between, within)]
        down, up = max(down, wider[0]), max(up, wider[1])
    return Difference(float(found), float(one), float(other), value, value - down, value + up, bool(clipped))


def shared_temperatures(arm: Sequence[Curve]) -> set[float]:
    """The temperatures at which all curves of a model have both figures."""
    return set.intersection(*({point.temperature for point in curve.known} for curve in arm))


def verdict(difference: Difference | None, claimed: Literal["higher", "lower"]) -> Verdict:
    """Whether a claim about the quality of the first model holds: by the interval of the difference alone."""
    return "undecided at this budget" if difference is None else verdict_of(difference.low, difference.high, claimed)


def verdict_of(low: float, high: float, claimed: str) -> Verdict:
    """The verdict of an interval of the difference, the claim being that it is "higher" or "lower" than zero."""
    if low > 0:
        return "shows" if claimed == "higher" else "contradicts"
    if high < 0:
        return "shows" if claimed == "lower" else "contradicts"
    return "undecided at this budget"


def compared(first: Arm, second: Arm, at: float | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """In each resample (R,): the diversity, both qualities there, whether it was moved, whether the ranges overlap."""
    one, other = mean_curve(first), mean_curve(second)
    low = torch.maximum(one.diversity.amin(1), other.diversity.amin(1))
    high = torch.minimum(one.diversity.amax(1), other.diversity.amax(1))
    wanted = other.at_temperature(1.0) if at is None else torch.full_like(low, at)
    overlaps = low <= high
    found = torch.where(overlaps, torch.minimum(torch.maximum(wanted, low), high), (low + high) / 2)
    return found, one.quality_at(found), other.quality_at(found), found != wanted, overlaps


def mean_curve(arm: Arm) -> Figures:
    """The mean of a model's curves at every temperature that all of them have, each as often as a resample has it."""
    shared = [each for each in arm[0][0].temperatures if all(each in curve.temperatures for curve, _ in arm)]
    counts = torch.stack([count for _, count in arm])[:, :, None]

    def mean(figures: Sequence[Tensor]) -> Tensor:
        return (torch.stack(list(figures)) * counts).sum(0) / counts.sum(0)

    places = [[curve.temperatures.index(each) for each in shared] for curve, _ in arm]
    quality = mean([curve.quality[:, place] for (curve, _), place in zip(arm, places, strict=True)])
    diversity = mean([curve.diversity[:, place] for (curve, _), place in zip(arm, places, strict=True)])
    return Figures(tuple(shared), quality, diversity)


def spread(
    arms: Sequence[Sequence[Curve]], drawn: Sequence[Draw], value: float, at: float | None, seed: int
) -> tuple[float, float]:
    """How far the percentiles of the difference lie below and above its value, with these parts of each model drawn."""
    one, other = (resamples(arm, kind, seed, f"{side}") for side, (arm, kind) in enumerate(zip(arms, drawn)))
    _, first, second, _, _ = compared(one, other, at)
    values = (first - second)[~(first - second).isnan()]
    low, high = values.quantile(torch.tensor(INTERVAL, dtype=torch.float64)).tolist()
    return max(0.0, value - low), max(0.0, high - value)


def widening(seeds: Sequence[int]) -> float:
    """How much wider than its percentiles the interval of a bootstrap over these numbers of seeds has to be."""
    freedom = sum(count - 1 for count in seeds)
    return t_quantile(freedom) / NORMAL * max(math.sqrt(count / (count - 1)) for count in seeds if count > 1)


def whole(curve: Curve) -> Figures:
    """The figures of a curve with all samples."""
    return figures_of(curve, lambda size: torch.ones(1, size, dtype=torch.float64))


def resamples(arm: Sequence[Curve], drawn: Draw, seed: int, tag: str) -> Arm:
    """Resamples of the curves of a model: of their samples, of the curves (training seeds), or of nothing."""
    once = torch.ones(RESAMPLES, dtype=torch.float64)
    if drawn == "samples":
        return [(resampled(curve, seed, f"{tag} {place}"), once) for place, curve in enumerate(arm)]
    same = [whole(curve).repeated(RESAMPLES) for curve in arm]
    if drawn == "whole":
        return [(figures, once) for figures in same]
    noise = Noise.of(seed, 0, torch.arange(RESAMPLES)).fold("training seeds").fold(tag)
    chosen = noise.integers("curves", len(arm), len(arm))
    return [(figures, (chosen == place).sum(1).double()) for place, figures in enumerate(same)]


def resampled(curve: Curve, seed: int, tag: str) -> Figures:
    """The figures of a curve in resamples of its samples; points with as many samples share their indices."""
    blocks = [
        figures_of(curve, partial(multiplicities, Noise.of(seed, 0, rows).fold("frontier").fold(tag)))
        for rows in (torch.arange(start, start + _BLOCK) for start in range(0, RESAMPLES, _BLOCK))
    ]
    quality = torch.cat([block.quality for block in blocks])
    return Figures(blocks[0].temperatures, quality, torch.cat([block.diversity for block in blocks]))


def multiplicities(noise: Noise, size: int) -> Tensor:
    """How often each of ``size`` samples is in each resample: (R, size)."""
    chosen = noise.integers(f"samples of {size}", size, size)
    ones = torch.ones(chosen.shape, dtype=torch.float64)
    return torch.zeros_like(ones).scatter_add_(1, chosen, ones)


def figures_of(curve: Curve, weights: Callable[[int], Tensor]) -> Figures:
    """The figures of a curve's points, with the weights (R, N) for N samples."""
    points = curve.known
    made = {size: weights(size) for size in {len(each.quality.totals) for each in points}}
    quality = torch.stack([each.quality.figures(made[len(each.quality.totals)]) for each in points], 1)
    diversity = torch.stack([each.diversity.figures(made[len(each.quality.totals)]) for each in points], 1)
    return Figures(tuple(point.temperature for point in points), quality, diversity)


# --- curves from the folder of a sweep


def curve_rows(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that differ in temperature alone, by label: the model with its settings, its round and steps."""
    found: dict[str, list[Row]] = {}
    for name, column in columns(rows, (TEMPERATURE,)).items():
        for _, same in grouped(column, lambda row: (round_of(row), row.steps)):
            rounds = "" if same[0].round is None else f", round {same[0].round}"
            label = f"{name}{rounds}, {same[0].steps} step{'s' * (same[0].steps != 1)}"
            found[label] = sorted(same, key=lambda row: row.temperature)
    return found


def curves_of(out: Path, rows: Sequence[Row], quality: str, diversity: str) -> list[Curve]:
    """The curves of a sweep in the folder ``out``, from its stored samples and scores.

    Quality and diversity are ``gen_ppl`` or ``nats`` (both: the judge's nats per token, the log of Gen PPL),
    ``entropy``, ``distinct_1``, ``distinct_2``, ``distinct_3``, or a column of a scorer.
    """
    return curves_in(dict.fromkeys(rows, out), quality, diversity)


def curves_in(places: Mapping[Row, Path], quality: str, diversity: str) -> list[Curve]:
    """``curves_of`` for rows that are in several folders."""
    scores = {out: Scores.read(out / FILE, silent) for out in set(places.values())}

    def point(row: Row) -> Point:
        path = sample_path(places[row], row.case)
        samples, kept = stored_samples(path, row.case), scores[places[row]]
        found = [values_of(row, name, samples, file_sha256(path), kept) for name in (quality, diversity)]
        return Point(row.temperature, *found)

    return [Curve(label, tuple(map(point, same))) for label, same in curve_rows(list(places)).items()]


def values_of(row: Row, name: str, samples: Samples, checksum: str, scores: Scores) -> Values:
    """The numbers of a row's samples that the measure ``name`` is made of."""
    if name in ("gen_ppl", "nats") and row.judge is not None:
        pairs = cast(list[tuple[float, int]], scores.kept(row.judge, checksum))
        nats, tokens = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        return Values(nats, tokens)
    if name == "entropy":
        values = entropies(samples.tokens)
        return Values(values, torch.ones_like(values))
    if name in ("distinct_1", "distinct_2", "distinct_3"):
        return Values(*distinct_shares(samples.tokens, int(name[-1])))
    if name in row.scores:
        kept = cast(dict[str, Column], scores.kept(row.scores[name].scorer, checksum))
        return Values(*totals_and_counts(kept[name]))
    judged = ["gen_ppl"] if row.judge is not None else []
    choices = ", ".join([*judged, "entropy", "distinct_1", "distinct_2", "distinct_3", *row.scores])
    raise ValueError(f"{row.label} was not measured by {name!r}: choose from {choices}")
