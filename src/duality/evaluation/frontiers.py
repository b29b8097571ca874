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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from duality.evaluation.statistics import INTERVAL, NORMAL, t_quantile
from duality.noise import Noise

_RESAMPLES = 2000
_BLOCK = 250  # resamples at a time

_Draw = Literal["samples", "seeds", "nothing"]  # what of a model is resampled


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
class _MeanCurve:
    """The mean curve of a model in R resamples: quality and diversity (R, P) at ``temperatures``."""

    temperatures: tuple[float, ...]
    quality: Tensor
    diversity: Tensor

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
    if not _shared_temperatures(first) or not _shared_temperatures(second):
        return None

    def compare(drawn: Sequence[_Draw], count: int) -> tuple[Tensor, ...]:
        one, other = (_mean_curve(arm, part, count, seed, tag) for arm, part, tag in zip((first, second), drawn, "01"))
        return _compare(one, other, at)

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
    seeds = len(first), len(second)
    if max(seeds) > 1:
        between = reach(["seeds" if count > 1 else "nothing" for count in seeds])
        within = reach(["nothing" if count > 1 else "samples" for count in seeds])
        wider = [math.hypot(_widen_by(seeds) * each, other) for each, other in zip(between, within)]
        down, up = max(down, wider[0]), max(up, wider[1])
    return Difference(float(found), float(one), float(other), value, value - down, value + up, bool(clipped))


def _shared_temperatures(arm: Sequence[Curve]) -> list[float]:
    """The temperatures at which all curves of a model have both figures."""
    known = [{point.temperature for point in curve.known} for curve in arm]
    return [point.temperature for point in arm[0].known if all(point.temperature in each for each in known)]


def _compare(one: _MeanCurve, other: _MeanCurve, at: float | None) -> tuple[Tensor, ...]:
    """In each resample (R,): the diversity, both qualities there, whether it was moved, whether the ranges overlap."""
    low = torch.maximum(one.diversity.amin(1), other.diversity.amin(1))
    high = torch.minimum(one.diversity.amax(1), other.diversity.amax(1))
    gaps = [abs(each - 1.0) for each in other.temperatures]
    wanted = other.diversity[:, gaps.index(min(gaps))] if at is None else torch.full_like(low, at)
    overlaps = low <= high
    found = torch.where(overlaps, torch.minimum(torch.maximum(wanted, low), high), (low + high) / 2)
    return found, one.quality_at(found), other.quality_at(found), found != wanted, overlaps


def _widen_by(seeds: Sequence[int]) -> float:
    """How much wider than its percentiles the interval of a bootstrap over these numbers of seeds has to be."""
    freedom = sum(count - 1 for count in seeds)
    return t_quantile(freedom) / NORMAL * max(math.sqrt(count / (count - 1)) for count in seeds if count > 1)


def _mean_curve(arm: Sequence[Curve], drawn: _Draw, count: int, seed: int, tag: str) -> _MeanCurve:
    """The mean of a model's curves at the temperatures that all have, in ``count`` resamples of what is ``drawn``.

    That are the samples of each curve, the curves themselves (training seeds), or nothing. Points of a curve with as
    many samples share their indices.
    """
    shared, figures = _shared_temperatures(arm), []
    weights = torch.ones(len(arm), count, dtype=torch.float64)
    for place, curve in enumerate(arm):
        points = [next(point for point in curve.known if point.temperature == each) for each in shared]
        if drawn == "samples":
            blocks = [
                Noise.of(seed, 0, rows).fold("frontier").fold(f"{tag} {place}")
                for rows in (torch.arange(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK))
            ]
            figures.append(torch.cat([_figures(points, block) for block in blocks], 1))
        else:
            figures.append(_figures(points, None).expand(-1, count, -1))
    if drawn == "seeds":
        noise = Noise.of(seed, 0, torch.arange(count)).fold("training seeds").fold(tag)
        chosen = noise.integers("curves", len(arm), len(arm))
        weights = torch.stack([(chosen == place).sum(1).double() for place in range(len(arm))])
    mean = (torch.stack(figures) * weights[:, None, :, None]).sum(0) / weights.sum(0)[:, None]
    return _MeanCurve(tuple(shared), mean[0], mean[1])


def _figures(points: Sequence[Point], noise: Noise | None) -> Tensor:
    """Quality and diversity of points in R resamples of their samples, one for each key of ``noise``: (2, R, P).

    Without noise R is 1, and every sample is there once.
    """
    weights = {}  # how often each of N samples is in each resample: (R, N)
    for size in {len(each.quality.totals) for each in points}:
        weights[size] = torch.ones(1, size, dtype=torch.float64)
        if noise is not None:
            chosen = noise.integers(f"samples of {size}", size, size)
            ones = torch.ones(chosen.shape, dtype=torch.float64)
            weights[size] = torch.zeros_like(ones).scatter_add_(1, chosen, ones)
    pairs = [
        torch.stack([each.figures(weights[len(each.totals)]) for each in (point.quality, point.diversity)])
        for point in points
    ]
    return torch.stack(pairs, 2)
