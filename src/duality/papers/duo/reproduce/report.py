"""The report of a reproduction in Markdown: for each claim the paper's figure, ours with its interval, the verdict.

The rule of the verdict stands first, before any number. ``page`` makes the same report a web page with the figures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from duality.evaluation.tables import table
from duality.files.atomic import write_atomically
from duality.papers.duo.reproduce.claims import RULE, Claim
from duality.papers.duo.reproduce.domains import Amount, Budget, Domain
from duality.papers.duo.reproduce.findings import Evidence, Finding
from duality.papers.duo.reproduce.page import page
from duality.papers.duo.reproduce.pictures import Picture, pictures_of

HEADERS = ("claim", "paper", "ours", "95 % interval", "at equal", "single points (temperature 1)", "verdict")


@dataclass(frozen=True)
class Chapter:
    """A domain, its claims and the evidence for them."""

    domain: Domain
    claims: Sequence[Claim]
    evidence: Evidence


Findings = Mapping[str, Mapping[str, Sequence[Finding]]]


def write_report(out: Path, budget: Budget, chapters: Sequence[Chapter], findings: Findings) -> None:
    """Write report.md, report.html and the figures."""
    pictures = {
        chapter.domain.name: pictures_of(out, chapter.domain, chapter.claims, chapter.evidence) for chapter in chapters
    }
    text = markdown(budget, chapters, findings, pictures)
    write_atomically(out / "report.md", text)
    write_atomically(out / "report.html", page(text, out))


def markdown(
    budget: Budget, chapters: Sequence[Chapter], findings: Findings, pictures: Mapping[str, Sequence[Picture]]
) -> str:
    """The whole report."""
    parts = [
        "# The paper's claims, tried again",
        f"`duality reproduce --budget {budget.name}`, on {parts_of(chapters)}.",
        f"**The rule, stated before any number.** {RULE}",
        "The paper's figures are of its own setting (LM1B or OpenWebText, 170 million parameters, GPT-2 Large as "
        "judge) and are not comparable in size, only in order. A claim of this project says: beyond the paper.",
    ]
    for chapter in chapters:
        domain, found = chapter.domain, findings[chapter.domain.name]
        parts += [f"## {domain.title}", introduction(domain, found)]
        parts += [f"![{picture.title}]({picture.path.name})" for picture in pictures[domain.name]]
        for claim in chapter.claims:
            parts += [f"### {claim.title} ({claim.where})", verdicts(found[claim.name])]
            parts.append(table([HEADERS, *(cells(each) for each in found[claim.name])]).rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def parts_of(chapters: Sequence[Chapter]) -> str:
    """The domains of a report, each with the names of its claims."""
    return "; ".join(
        f"{chapter.domain.name} ({', '.join(claim.name for claim in chapter.claims)})" for chapter in chapters
    )


def in_words(amount: Amount) -> str:
    """How much is measured."""
    seeds = amount.seeds
    return (
        f"Training seeds: {seeds.bases} of the models that are sampled, {seeds.students} of each distillation, "
        f"{seeds.short} of the short runs that compare likelihoods. Samples in each setting and for each seed: "
        f"{amount.few_num} at 8 steps and fewer, {amount.num} at more, twice as many where a model has one seed. "
        f"Temperatures: {', '.join(map(str, amount.temperatures))}."
    )


def introduction(domain: Domain, found: Mapping[str, Sequence[Finding]]) -> str:
    """What is measured in a domain, and how many verdicts there are of each kind."""
    direction = "higher is better" if domain.better == "higher" else "lower is better"
    every = [finding for rows in found.values() for finding in rows]
    judge = "" if domain.judge is None else f" under {domain.judge}"
    return (
        f"Quality is {domain.quality}{judge} ({direction}), diversity is {domain.diversity}. Of {len(every)} "
        f"comparisons: {verdicts(every)} {in_words(domain.amount)}"
    )


def verdicts(rows: Sequence[Finding]) -> str:
    """How often each verdict was found."""
    counts = Counter(finding.verdict for finding in rows)
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items(), key=lambda each: -each[1])) + "."


def cells(finding: Finding) -> tuple[str, ...]:
    """A finding as a line of the table."""
    mark = {"shows": "**shows**", "contradicts": "**contradicts**"}.get(finding.verdict, finding.verdict)
    if math.isnan(finding.value):
        return finding.statement, finding.paper, "–", "–", "–", finding.points, mark
    return (
        finding.statement,
        finding.paper,
        ours(finding),
        f"[{signed(finding.low, finding.unit)}, {signed(finding.high, finding.unit)}]",
        finding.at or "–",
        finding.points or "–",
        mark,
    )


def ours(finding: Finding) -> str:
    """Both figures and their difference."""
    if finding.unit == "nats per token":
        return f"PPL {finding.first:.3f} and {finding.second:.3f}: {signed(finding.value, finding.unit)} {finding.unit}"
    if finding.unit == "of the variance":
        return f"{finding.first:.3g} and {finding.second:.3g}: {finding.value:.2f} {finding.unit}"
    if finding.unit.endswith("per sample"):
        return f"{finding.first:.2f} and {finding.second:.2f} ms: {finding.value:.2f} {finding.unit}"
    return f"{finding.first:.1f} and {finding.second:.1f}: {signed(finding.value, finding.unit)} {finding.unit}"


def signed(value: float, unit: str) -> str:
    """A difference with its sign; a ratio without."""
    if unit.startswith("of the"):
        return f"{value:.2f}"
    return (
        f"{value:+.1f}"
        if unit.startswith("points")
        else f"{value:+.4f}"
        if unit.startswith("nats")
        else f"{value:+.3f}"
    )
