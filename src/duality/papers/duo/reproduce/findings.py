"""Findings: what the stored likelihoods and samples say about each comparison of a claim, and the verdict.

The results of a domain are kept by the key of a model and its seed:

    OUT/runs/<key>-<seed>/                  the run folders
    OUT/likelihoods/<key>-<seed>.json       nats per token of held-out text
    OUT/variances/<key>-<seed>.json         variances of gradients, of several objectives
    OUT/samples/<key>-<seed>/               a sweep's folder: samples, scores, quality.json

What must hold: every number and verdict here is computed from these files, so that it is the same when it is computed
again; nothing is trained or sampled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from duality.evaluation.frontiers import Curve, curves_of, difference
from duality.evaluation.metrics import NORMAL, t_quantile
from duality.evaluation.samples import Case, Row, label_of, read_rows
from duality.papers.duo.reproduce.claims import Arm, Claim, Comparison, Domain

_CHEAP = 8  # steps: a sample costs little, and more of them can be written
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
        """The cases of an arm with one seed: one for each temperature."""
        run, domain = self.path("runs", arm.model, seed), self.domain
        steps = domain.length if arm.steps is None else arm.steps
        num = domain.few_num if steps <= _CHEAP else domain.num
        return [
            Case(
                label=label_of(run.name, arm.round),
                run=run,
                steps=steps,
                num=num * (2 if len(domain.seeds(arm.model)) == 1 else 1),
                length=domain.length,
                round=arm.round,
                sampler=arm.sampler,
                tail=arm.tail,
                temperature=temperature,
                precision="float32" if domain.precision == "auto" else domain.precision,  # on a CPU
            )
            for temperature in domain.temperatures
        ]

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

    def read_curves(self, arm: Arm) -> list[Curve]:
        """Quality against diversity over temperatures: a curve for each seed."""
        return curves_of(self.rows(arm), self.domain.quality, self.domain.diversity)

    def mean(self, arm: Arm, measure: str, temperature: float = 1.0) -> float:
        """A measure of an arm at a temperature, the mean over seeds: one of its rows' own, or a scorer's column."""
        found = [row.measure(measure)[0] for row in self.rows(arm) if row.temperature == temperature]
        return fmean(math.nan if value is None else value for value in found)

    def describe(self, arm: Arm) -> str:
        """Quality and diversity at temperature 1, as the paper gives them, over all seeds."""
        quality, diversity = self.mean(arm, self.domain.quality), self.mean(arm, self.domain.diversity)
        return f"{quality * max(self.domain.scale, 1):.1f} at {diversity:.3f}"

    def _compare_quality(self, comparison: Comparison) -> Finding:
        """Quality of the first minus that of the second at equal diversity."""
        domain, first, second = self.domain, comparison.arms[0], comparison.other
        found = difference(self.read_curves(first), self.read_curves(second))
        points = f"{self.describe(first)} and {self.describe(second)}"
        says = comparison.statement, comparison.paper
        if found is None:
            return Finding(*says, unit=domain.unit, verdict="no equal diversity", points=points)
        figures = found.first * domain.scale, found.second * domain.scale
        ends = found.value * domain.scale, found.low * domain.scale, found.high * domain.scale
        at = f"{domain.diversity} {found.at:.3f}{' (nearest common)' if found.clipped else ''}"
        verdict = _decide(found.low, found.high, domain.better)
        return Finding(*says, *figures, *ends, domain.unit, verdict, at, points)

    def compare_speed(self, comparison: Comparison) -> Finding:
        """Seconds per sample of the first divided by those of the second, with the quality of both."""
        arms = comparison.arms[0], comparison.other
        first, second = ([row.seconds_per_sample for row in self.rows(arm) if row.temperature == 1.0] for arm in arms)
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
