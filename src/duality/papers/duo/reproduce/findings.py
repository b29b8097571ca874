"""Findings: what the stored likelihoods and samples say about each comparison of a claim, and the verdict.

The results of a domain are kept by the key of a model and its seed:

    OUT/runs/<key>-<seed>/                  the run folders
    OUT/likelihoods/<key>-<seed>.json       nats per token of held-out text
    OUT/variances/<key>-<seed>.json         variances of gradients, of several objectives
    OUT/samples/<key>-<seed>/               a sweep's folder: samples, scores, quality.json

Where models are compared at their best temperatures, each trained model has its own: the one at which half as many
samples, of another seed, are best. The samples that are counted have no part in the choice.

What must hold: every number and verdict here is computed from these files, so that it is the same when it is computed
again; nothing is trained or sampled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

import torch

from duality.evaluation.frontiers import Curve, Point, curves_of, difference
from duality.evaluation.metrics import NORMAL, Values, t_quantile
from duality.evaluation.samples import Case, Row, label_of, read_rows
from duality.papers.duo.reproduce.claims import Arm, Claim, Comparison, Domain

_CHEAP = 8  # steps: a sample costs little, and more of them can be written
_CHOOSING = 1  # the seed of the samples by which a temperature is chosen
_TIME = "of the milliseconds per sample"

_Differences = Sequence[tuple[float, float]]  # each with its standard error


@dataclass(frozen=True)
class Finding:
    """One comparison: the paper's figure, ours with its interval, and the verdict.

    ``value`` is the first minus the second, ``low`` to ``high`` its 95 % interval, in the unit ``unit``; ``first`` and
    ``second`` are the two figures, ``at`` the diversity at which they are compared. ``points`` are the figures at
    temperature 1, as the paper gives them: quality and diversity of both. A comparison that cannot be made has no
    figures, and the reason as its verdict.
    """

    statement: str
    paper: str
    first: float = math.nan
    second: float = math.nan
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    unit: str = ""
    verdict: str = ""
    at: str = ""
    points: str = ""


@dataclass(frozen=True)
class Evidence:
    """The stored results of one domain, and the claims that they decide."""

    out: Path
    domain: Domain
    claims: Sequence[Claim] = ()

    def arms(self, *kinds: str) -> list[Arm]:
        """The arms of all comparisons of these kinds, each once; those whose samples are needed if none is named."""
        wanted = kinds or ("better", "speed", "equal quality")
        compared = (each for claim in self.claims for each in claim.comparisons if each.kind in wanted)
        return list(dict.fromkeys(arm for each in compared for arm in (*each.arms, each.other)))

    def objectives(self, key: str) -> tuple[str, ...]:
        """The objectives whose gradients are measured at the weights of a model."""
        return tuple(arm.objective for arm in self.arms("variances") if arm.model == key)

    def path(self, kind: str, key: str, seed: int) -> Path:
        """Where the run of a model with a seed is, its samples, or its likelihood or variances."""
        name = f"{key}-{seed}"
        return self.out / kind / (name if kind in ("runs", "samples") else f"{name}.json")

    def cases(self, arm: Arm, seed: int) -> list[Case]:
        """The cases of an arm with one seed, one for each temperature: what is compared, or by which one is chosen."""
        run, domain = self.path("runs", arm.model, seed), self.domain
        steps = domain.length if arm.steps is None else arm.steps
        num = (domain.few_num if steps <= _CHEAP else domain.num) * (2 if len(domain.seeds(arm.model)) == 1 else 1)
        case = Case(
            label=label_of(run.name, arm.round),
            run=run,
            steps=steps,
            num=num,
            length=domain.length,
            round=arm.round,
            sampler=arm.sampler,
            tail=arm.tail,
            precision="float32" if domain.precision == "auto" else domain.precision,  # on a CPU
        )
        if not domain.diversity:
            case = replace(case, num=max(2, num // 2), seed=_CHOOSING)
        return [replace(case, temperature=temperature) for temperature in domain.temperatures]

    def counted_case(self, arm: Arm, seed: int, rows: Mapping[str, Row]) -> Case:
        """The samples that are counted, at the temperature that is best by the rows, by key, of ``cases``."""
        cases, sign = self.cases(arm, seed), 1 if self.domain.better == "higher" else -1
        qualities = {case: rows[case.key].measure(self.domain.quality)[0] for case in cases}
        known = {case: sign * value for case, value in qualities.items() if value is not None}
        best = max(known or cases, key=lambda case: (known.get(case, 0.0), -abs(case.temperature - 1)))
        return replace(best, num=2 * best.num, seed=0)

    @cached_property
    def findings(self) -> dict[str, list[Finding]]:
        """The findings of the claims, by name."""
        return {claim.name: [self.decide(each) for each in claim.comparisons] for claim in self.claims}

    def decide(self, comparison: Comparison) -> Finding:
        """What the results say about a comparison.

        Likelihoods are compared seed by seed, and fewer nats are claimed. Variances are divided, the first by the
        second, and less than 1 is claimed.
        """
        first, other, kind = comparison.arms[0], comparison.other, comparison.kind
        if kind in ("likelihoods", "variances"):
            seeds = self.domain.seeds(first.model)
            paths = [[self.path(kind, arm.model, seed) for seed in seeds] for arm in (first, other)]
            one, two = ([json.loads(path.read_text(encoding="utf-8")) for path in each] for each in paths)
            if kind == "likelihoods":
                figures = [math.exp(fmean(each["nats"] for each in found)) for found in (one, two)]
                gaps = [(a["nats"] - b["nats"], math.hypot(a["stderr"], b["stderr"])) for a, b in zip(one, two)]
                return _decide_pairs(comparison, figures, gaps, "nats per token")
            name = comparison.statistic
            figures = [fmean(each["values"][arm.objective][name] for each in one) for arm in (first, other)]
            ratios = [each["log_ratios"][name][first.objective][other.objective] for each in one]
            return _decide_pairs(comparison, figures, ratios, "of the variance")
        if kind == "speed":
            return self.compare_speed(comparison)
        return self._compare_quality(comparison) if kind == "better" else self._compare_equals(comparison)

    # --- samples

    @cached_property
    def _rows(self) -> dict[str, tuple[Row, Path]]:
        """The rows of all samples that the claims need, with their folders, by the keys of their cases."""
        models = dict.fromkeys(arm.model for arm in self.arms())
        folders = [self.path("samples", model, seed) for model in models for seed in self.domain.seeds(model)]
        return {row.key: (row, folder) for row, folder in read_rows(folders).items()}

    def rows(self, arm: Arm) -> dict[Row, Path]:
        """The rows of an arm, one for each seed and temperature, with the folders of their samples."""
        return dict(self._rows[case.key] for seed in self.domain.seeds(arm.model) for case in self.cases(arm, seed))

    def counted_rows(self, arm: Arm) -> dict[Row, Path]:
        """The rows at temperature 1, as the paper has them; or those at the best temperature: one for each seed."""
        if self.domain.diversity:
            return {row: folder for row, folder in self.rows(arm).items() if row.temperature == 1.0}
        rows = {key: row for key, (row, _) in self._rows.items()}
        return dict(self._rows[self.counted_case(arm, seed, rows).key] for seed in self.domain.seeds(arm.model))

    def read_curves(self, arm: Arm) -> list[Curve]:
        """A curve for each seed: quality against diversity over temperatures, or the best temperature alone."""
        if self.domain.diversity:
            return curves_of(self.rows(arm), self.domain.quality, self.domain.diversity)
        curves = curves_of(self.counted_rows(arm), self.domain.quality, self.domain.quality)
        return [Curve(curve.label, (_without_diversity(point),)) for curve in curves for point in curve.points]

    def measure_alone(self, arm: Arm) -> tuple[float, float, float]:
        """The quality of an arm with its interval: its difference from a model that is known to have none."""
        nothing = Point(1.0, Values(torch.zeros(2), torch.ones(2)), Values(torch.ones(2), torch.ones(2)))
        found = difference(self.read_curves(arm), [Curve("nothing", (nothing,))])
        assert found is not None, "no diversity is compared"
        return found.value, found.low, found.high

    def mean(self, arm: Arm, measure: str, temperature: float | None = None) -> float:
        """A measure of an arm, the mean over seeds, at a temperature; None for that of ``counted_rows``."""
        counted, every = self.counted_rows(arm), self.rows(arm)
        rows = counted if temperature is None else [row for row in every if row.temperature == temperature]
        found = [row.measure(measure)[0] for row in rows]
        return fmean(math.nan if value is None else value for value in found)

    def describe(self, arm: Arm) -> str:
        """Quality and diversity at temperature 1, as the paper gives them, over all seeds; or the best temperatures."""
        quality = f"{self.mean(arm, self.domain.quality) * max(self.domain.scale, 1):.1f}"
        if self.domain.diversity:
            return f"{quality} at {self.mean(arm, self.domain.diversity):.3f}"
        return f"{quality} at temperature {', '.join(f'{row.temperature:g}' for row in self.counted_rows(arm))}"

    def _compare_quality(self, comparison: Comparison) -> Finding:
        """Quality of the first minus that of the second, at equal diversity or at the best temperature of each."""
        domain, first, second = self.domain, comparison.arms[0], comparison.other
        found = difference(self.read_curves(first), self.read_curves(second))
        points = f"{self.describe(first)} and {self.describe(second)}"
        says = comparison.statement, comparison.paper
        if found is None:
            return Finding(*says, unit=domain.unit, verdict="no equal diversity", points=points)
        figures = found.first * domain.scale, found.second * domain.scale
        ends = found.value * domain.scale, found.low * domain.scale, found.high * domain.scale
        at = (
            f"{domain.diversity} {found.at:.3f}{' (nearest common)' if found.clipped else ''}"
            if domain.diversity
            else ""
        )
        verdict = _decide(found.low, found.high, domain.better)
        return Finding(*says, *figures, *ends, domain.unit, verdict, at, points)

    def compare_speed(self, comparison: Comparison) -> Finding:
        """Seconds per sample of the first divided by those of the second, with the quality of both."""
        arms = comparison.arms[0], comparison.other
        first, second = ([row.seconds_per_sample for row in self.counted_rows(arm)] for arm in arms)
        logs = [(math.log(a / b), 0.0) for a in first for b in second]
        points = " and ".join(map(self.describe, arms))
        return _decide_pairs(comparison, [1000 * fmean(first), 1000 * fmean(second)], logs, _TIME, points)

    def _compare_equals(self, comparison: Comparison) -> Finding:
        """The speed of the first arm that is as good as the other; without one, the last arm's quality is shown."""
        goal, last = self.read_curves(comparison.other), comparison.arms[-1]
        for arm in comparison.arms:
            found = difference(self.read_curves(arm), goal)
            if found is not None and _decide(found.low, found.high, self.domain.better) != "contradicts":
                speed = self.compare_speed(replace(comparison, kind="speed", arms=(arm,)))
                return replace(speed, statement=f"{comparison.statement} ({arm.words})")
        points = f"{self.describe(last)} ({last.words}) and {self.describe(comparison.other)}"
        says = comparison.statement, comparison.paper
        return Finding(*says, unit=_TIME, verdict="quality not reached", points=points)


def _without_diversity(point: Point) -> Point:
    """The quality of a point, at no temperature in particular: one of several that are compared as they are."""
    return Point(
        1.0, point.quality, Values(torch.ones_like(point.quality.totals), torch.ones_like(point.quality.totals))
    )


def _decide(low: float, high: float, claimed: str) -> str:
    """The verdict of an interval of a difference, the claim being that it is "higher" or "lower" than zero."""
    if low > 0 or high < 0:
        return "shows" if (low > 0) == (claimed == "higher") else "contradicts"
    return "undecided at this budget"


def _decide_pairs(
    comparison: Comparison, figures: Sequence[float], differences: _Differences, unit: str, points: str = ""
) -> Finding:
    """The finding of differences with their errors; those "of the" second are logarithms of ratios. Less is claimed."""
    (first, second), (value, half) = figures, _paired_interval(differences)
    shown = math.exp if unit.startswith("of the") else float
    interval = shown(value), shown(value - half), shown(value + half)
    verdict = _decide(value - half, value + half, "lower")
    return Finding(comparison.statement, comparison.paper, first, second, *interval, unit, verdict, points=points)


def _paired_interval(differences: _Differences) -> tuple[float, float]:
    """The mean of differences and half the width of its 95 % interval.

    Each difference has a standard error of its own, from the finite text. With three seeds or more the spread of the
    differences, which contains these errors, gives the interval (Student); with fewer, the errors alone do.
    """
    values, count = [value for value, _ in differences], len(differences)
    if count < 3:
        return fmean(values), NORMAL * math.sqrt(sum(error**2 for _, error in differences)) / count
    return fmean(values), t_quantile(count - 1) * stdev(values) / math.sqrt(count)
