"""Findings: what the stored likelihoods and samples say about each comparison of a claim, and the verdict.

What must hold: every number and verdict here is computed from files (``work``), so that it is the same when it is
computed again; nothing is trained or sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from duality.evaluation.frontier_report import curves_of
from duality.evaluation.frontiers import Curve, Difference, difference, verdict, verdict_of
from duality.evaluation.statistics import NORMAL, t_quantile
from duality.evaluation.sweep.samples import Case, Row, read_rows
from duality.papers.duo.reproduce.claims import (
    Arm,
    Better,
    Claim,
    Comparison,
    EqualQuality,
    Likelihoods,
    Speed,
    Variances,
)
from duality.papers.duo.reproduce.domains import Domain
from duality.papers.duo.reproduce.models import run_folder
from duality.papers.duo.reproduce.work import read_likelihood, read_variances

NO_OVERLAP = "no equal diversity"
NOT_REACHED = "quality not reached"


@dataclass(frozen=True)
class Finding:
    """One comparison: the paper's figure, ours with its interval, and the verdict.

    ``value`` is the first minus the second, ``low`` to ``high`` its 95 % interval, in the unit ``unit``; ``first`` and
    ``second`` are the two figures, ``at`` the diversity at which they are compared. ``points`` are the figures at
    temperature 1, as the paper gives them: quality and diversity of both.
    """

    statement: str
    paper: str
    first: float
    second: float
    value: float
    low: float
    high: float
    unit: str
    verdict: str
    at: str = ""
    points: str = ""


@dataclass(frozen=True)
class Evidence:
    """The stored results of one domain, and the comparisons that they decide."""

    out: Path
    domain: Domain

    def finding(self, comparison: Comparison) -> Finding:
        """What a comparison found."""
        if isinstance(comparison, Likelihoods):
            return self.likelihoods(comparison)
        if isinstance(comparison, Variances):
            return self.variances(comparison)
        if isinstance(comparison, EqualQuality):
            return self.equal_quality(comparison)
        return self.speed(comparison) if isinstance(comparison, Speed) else self.samples(comparison)

    # --- likelihoods

    def likelihoods(self, comparison: Likelihoods) -> Finding:
        """Nats of the first minus those of the second, seed by seed; fewer nats are claimed."""
        pairs = []
        for seed in self.domain.seeds(comparison.first):
            first = read_likelihood(self.out, comparison.first, seed)
            pairs.append((first, read_likelihood(self.out, comparison.second, seed)))
        value, half = paired_interval([(a - b, math.hypot(da, db)) for (a, da), (b, db) in pairs])
        return Finding(
            comparison.statement,
            comparison.paper,
            math.exp(fmean(first for (first, _), _ in pairs)),
            math.exp(fmean(second for _, (second, _) in pairs)),
            value,
            value - half,
            value + half,
            "nats per token",
            verdict_of(value - half, value + half, "lower"),
        )

    def variances(self, comparison: Variances) -> Finding:
        """The variance of the first objective divided by that of the second, over seeds; less than 1 is claimed."""
        pair = comparison.first, comparison.second
        found = [
            read_variances(self.out, comparison.model, seed, comparison.statistic, pair)
            for seed in self.domain.seeds(comparison.model)
        ]
        value, half = paired_interval([(each.log, each.error) for each in found])
        return Finding(
            comparison.statement,
            comparison.paper,
            fmean(each.first for each in found),
            fmean(each.second for each in found),
            math.exp(value),
            math.exp(value - half),
            math.exp(value + half),
            "of the variance",
            verdict_of(value - half, value + half, "lower"),
        )

    # --- samples

    def samples(self, comparison: Better) -> Finding:
        """Quality of the first minus that of the second at equal diversity."""
        first, second = self.curves(comparison.first), self.curves(comparison.second)
        found = difference(first, second)
        points = f"{self.point(comparison.first)} and {self.point(comparison.second)}"
        if found is None:
            return unmeasured(comparison, self.domain.unit, NO_OVERLAP, points)
        scale = self.domain.scale
        return Finding(
            comparison.statement,
            comparison.paper,
            found.first * scale,
            found.second * scale,
            found.value * scale,
            found.low * scale,
            found.high * scale,
            self.domain.unit,
            verdict(found, self.domain.better),
            at=self.where(found),
            points=points,
        )

    def where(self, found: Difference) -> str:
        """The diversity of a comparison in words."""
        return f"{self.domain.diversity} {found.at:.3f}{' (nearest common)' if found.clipped else ''}"

    def curves(self, arm: Arm) -> list[Curve]:
        """Quality against diversity over temperatures: a curve for each seed."""
        found = []
        for seed in self.seeds(arm):
            folder, rows = self.folder(arm, seed), self.rows(arm, seed)
            found += curves_of(dict.fromkeys(rows, folder), self.domain.quality, self.domain.diversity)
        return found

    def point(self, arm: Arm) -> str:
        """Quality and diversity at temperature 1, as the paper gives them, over all seeds."""
        rows = [row for seed in self.seeds(arm) for row in self.rows(arm, seed) if row.temperature == 1.0]
        quality = fmean(figure(row, self.domain.quality) for row in rows)
        diversity = fmean(figure(row, self.domain.diversity) for row in rows)
        return f"{quality * (self.domain.scale if self.domain.scale > 1 else 1):.1f} at {diversity:.3f}"

    def seeds(self, arm: Arm) -> range:
        """The seeds of the arm's model."""
        return self.domain.seeds(arm.model)

    def folder(self, arm: Arm, seed: int) -> Path:
        """The folder of a run's samples."""
        return self.out / "samples" / run_folder(self.out, arm.model, seed).name

    def rows(self, arm: Arm, seed: int) -> list[Row]:
        """The rows of an arm with one seed, one for each temperature."""
        known = self.all_rows[str(self.folder(arm, seed))]
        wanted = {case.key for case in cases_of(arm, seed, self.out, self.domain)}
        return [row for row in known if row.case.key in wanted]

    @cached_property
    def all_rows(self) -> dict[str, list[Row]]:
        """All rows of the domain by folder; real text has none here."""
        folders = sorted(path.parent for path in (self.out / "samples").glob("*/quality.json"))
        return {str(folder): list(read_rows([folder])) for folder in folders}

    # --- speed

    def speed(self, comparison: Speed) -> Finding:
        """Seconds per sample of the second divided by those of the first, with the quality of both."""
        first, second = (
            [row for seed in self.seeds(arm) for row in self.rows(arm, seed) if row.temperature == 1.0]
            for arm in (comparison.first, comparison.second)
        )
        ratios = [a.seconds_per_sample / b.seconds_per_sample for a in first for b in second]
        logs = [math.log(ratio) for ratio in ratios]
        value, half = paired_interval([(log, 0.0) for log in logs])
        return Finding(
            comparison.statement,
            comparison.paper,
            1000 * fmean(row.seconds_per_sample for row in first),
            1000 * fmean(row.seconds_per_sample for row in second),
            math.exp(value),
            math.exp(value - half),
            math.exp(value + half),
            "of the milliseconds per sample",
            verdict_of(value - half, value + half, "lower"),
            points=f"{self.point(comparison.first)} and {self.point(comparison.second)}",
        )

    def equal_quality(self, comparison: EqualQuality) -> Finding:
        """The speed of the first arm that is as good as the goal; without one, the last arm's quality is shown."""
        goal = self.curves(comparison.goal)
        for arm in comparison.arms:
            found = difference(self.curves(arm), goal)
            if found is not None and verdict(found, self.domain.better) != "contradicts":
                speed = self.speed(Speed(arm, comparison.goal, comparison.paper))
                return replace(speed, statement=f"{comparison.statement} ({arm.words})")
        points = f"{self.point(comparison.arms[-1])} ({comparison.arms[-1].words}) and {self.point(comparison.goal)}"
        return unmeasured(comparison, "of the milliseconds per sample", NOT_REACHED, points)


def unmeasured(comparison: Comparison, unit: str, why: str, points: str) -> Finding:
    """A comparison that has no figures, with the reason as its verdict."""
    nothing = float("nan")
    return Finding(
        comparison.statement, comparison.paper, nothing, nothing, nothing, nothing, nothing, unit, why, points=points
    )


def figure(row: Row, name: str) -> float:
    """A measure of a row by its name: one of its own or a scorer's column."""
    value = row.scores[name].value if name in row.scores else getattr(row, name)
    return float("nan") if value is None else float(value)


def paired_interval(differences: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of differences and half the width of its 95 % interval.

    Each difference has a standard error of its own, from the finite text. With three seeds or more the spread of the
    differences, which contains these errors, gives the interval (Student); with fewer, the errors alone do.
    """
    values, errors = [value for value, _ in differences], [error for _, error in differences]
    count = len(values)
    own = NORMAL * math.sqrt(sum(error**2 for error in errors)) / count
    if count < 3:
        return fmean(values), own
    return fmean(values), t_quantile(count - 1) * stdev(values) / math.sqrt(count)


def cases_of(arm: Arm, seed: int, out: Path, domain: Domain) -> list[Case]:
    """The cases of an arm with one seed: one for each temperature."""
    run = run_folder(out, arm.model, seed)
    length = domain.length
    steps = length if arm.steps is None else arm.steps
    return [
        Case(
            label=run.name if arm.round is None else f"{run.name}, round {arm.round}",
            run=run,
            steps=steps,
            num=domain.amount.samples(steps, len(domain.seeds(arm.model))),
            length=length,
            round=arm.round,
            sampler=arm.sampler,
            tail=arm.tail,
            temperature=temperature,
        )
        for temperature in domain.amount.temperatures
    ]


def findings_of(claims: Sequence[Claim], evidence: Evidence) -> dict[str, list[Finding]]:
    """The findings of all claims, by name."""
    return {claim.name: [evidence.finding(each) for each in claim.comparisons] for claim in claims}
