"""A reproduction from beginning to end: jobs, findings, report.

    OUT/<domain>/runs, likelihoods, samples      what the jobs keep (``work``)
    OUT/report.md, report.html, *.png            the report (``report``, ``page``, ``pictures``)
    OUT/findings.json                            every comparison with its figures and its verdict

What must hold: killed at any point and started again it continues; the report depends on the kept files alone and is
the same to the digit for the same seeds and numbers of workers' threads, but for what is measured in seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from duality.evaluation.sweep.samples import Case
from duality.evaluation.tables import table
from duality.files.atomic import output_folder, write_atomically
from duality.files.progress import Reporter
from duality.papers.duo.reproduce.claims import Claim, chosen_claims
from duality.papers.duo.reproduce.domains import Budget, Domain
from duality.papers.duo.reproduce.findings import Evidence, Finding, cases_of, findings_of
from duality.papers.duo.reproduce.jobs import Advance, Job, execute
from duality.papers.duo.reproduce.models import Base, Student
from duality.papers.duo.reproduce.report import Chapter, verdicts, write_report
from duality.papers.duo.reproduce.work import BATCH, Measure, Several, Train, Vary, Write
from duality.recipes import catalogue
from duality.recipes.corpus import prepare_corpus

_SAMPLING = 1 / 3  # the cost of a token in a sampling step, if that of a token in a training step is 1
_DISTILLING = 4 / 3  # a step of distillation also calls the teacher


@dataclass(frozen=True)
class Settings:
    """Where, what and how: the folder, the budget, the claims (none: all), the processes and their threads."""

    out: Path
    budget: Budget
    claims: tuple[str, ...] = ()
    workers: int = 2
    threads: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1 or self.threads < 1:
            raise ValueError(f"workers is {self.workers}, threads {self.threads}: each must be at least 1")


@dataclass(frozen=True)
class Planner:
    """The jobs of one domain."""

    out: Path
    domain: Domain
    claims: Sequence[Claim]

    def jobs(self) -> list[Job]:
        """Trainings, likelihoods and samples of all claims, what takes long first."""
        measured = {key for claim in self.claims for key in claim.measured()}
        varied = {key for claim in self.claims for key in claim.varied()}
        sampled = {arm.model for claim in self.claims for arm in claim.arms()}
        bases = {model.base for key in sampled if isinstance(model := self.domain.models[key], Student)}
        found: list[Job] = []
        for key in sorted(measured | varied | sampled | bases, key=lambda key: (-self.steps(key), key)):
            seeds = self.domain.seeds(key)
            if key in sampled | bases:
                found += [self.training(key, (seed,), key in measured) for seed in seeds]
                found += [self.writing(key, seed) for seed in seeds if key in sampled]
            else:
                found.append(self.training(key, tuple(seeds), key in measured))
        return found

    def steps(self, key: str) -> int:
        """The training steps of a model."""
        model = self.domain.models[key]
        if isinstance(model, Base):
            return catalogue.recipe(model.recipe, model.changes).training.steps
        return (model.rounds.rounds or 0) * (model.rounds.round_steps or 0)

    def training(self, key: str, seeds: tuple[int, ...], measured: bool) -> Job:
        """Train a model with some seeds and, if it is asked for, measure its likelihood."""
        model = self.domain.models[key]
        recipe = self.domain.models[model.base] if isinstance(model, Student) else model
        assert isinstance(recipe, Base)
        settings = catalogue.recipe(recipe.recipe, recipe.changes)
        unit = float(settings.training.batch_size * settings.data.length)
        needs: tuple[str, ...] = ()
        if isinstance(model, Student):
            unit *= _DISTILLING
            needs = tuple(self.name("train", model.base, self.domain.amount.seeds.base_seed(seed)) for seed in seeds)
        pieces: list[Train | Measure | Vary] = []
        objectives = tuple(dict.fromkeys(name for claim in self.claims for name in claim.varied().get(key, ())))
        draws = self.domain.amount.draws
        for seed in seeds:
            pieces.append(Train(self.out, key, seed, model, self.domain.amount.seeds.base_seed(seed), unit))
            pieces += [Measure(self.out, key, seed, self.domain.amount.sequences)] if measured else []
            pieces += [Vary(self.out, key, seed, objectives, draws)] if objectives else []
        cost = unit * (self.steps(key) + draws * len(objectives)) * len(seeds)
        return Job(self.name("train", key, seeds[0]), needs, cost, Several(tuple(pieces)))

    def writing(self, key: str, seed: int) -> Job:
        """Write and score all samples of a model that some claim needs."""
        arms = dict.fromkeys(arm for claim in self.claims for arm in claim.arms() if arm.model == key)
        cases = [case for arm in arms for case in cases_of(arm, seed, self.out, self.domain)]
        unit = BATCH * self.domain.length * _SAMPLING
        cost = unit * sum(case.steps * -(-case.num // BATCH) for case in cases)
        folder = self.out / "samples" / cases[0].run.name
        work = Write(folder, tuple(self.one_model_after_another(cases)), self.domain.scorer, self.domain.judge, unit)
        return Job(self.name("samples", key, seed), (self.name("train", key, seed),), cost, work)

    @staticmethod
    def one_model_after_another(cases: list[Case]) -> list[Case]:
        """The cases in an order in which each round of a distillation is loaded once."""
        return sorted(cases, key=lambda case: -1 if case.round is None else case.round)

    def name(self, kind: str, key: str, seed: int) -> str:
        """The name of a job."""
        return f"{self.domain.name}: {kind} {key}-{seed}"


def reproduce(
    settings: Settings, report: Reporter, show: Callable[[float], AbstractContextManager[Advance]]
) -> dict[str, dict[str, list[Finding]]]:
    """Do all that the claims need, decide them, and write the report; the findings by domain and claim."""
    chapters: list[Chapter] = []
    jobs: list[Job] = []
    for domain in settings.budget.domains:
        out = settings.out / domain.name
        claims = chosen_claims(settings.claims, domain)
        chapters.append(Chapter(domain, claims, Evidence(out, domain)))
        jobs += Planner(out, domain, claims).jobs()
        base = next(model for model in domain.models.values() if isinstance(model, Base))
        prepare_corpus(catalogue.recipe(base.recipe), report)  # once, before several processes need it
    output_folder(settings.out)
    report(f"{len(jobs)} jobs in {settings.workers} processes of {settings.threads} thread(s), kept in {settings.out}")
    with show(sum(job.cost for job in jobs)) as advance:
        execute(jobs, workers=settings.workers, threads=settings.threads, report=report, advance=advance)
    found = {chapter.domain.name: findings_of(chapter.claims, chapter.evidence) for chapter in chapters}
    kept = {
        name: {claim: [as_json(each) for each in rows] for claim, rows in each.items()} for name, each in found.items()
    }
    write_atomically(settings.out / "findings.json", json.dumps(kept, indent=1, allow_nan=False))
    write_report(settings.out, settings.budget, chapters, found)
    return found


def as_json(finding: Finding) -> dict[str, str | float | None]:
    """A finding as a JSON object; a figure that there is not is null."""
    return {name: None if value != value else value for name, value in asdict(finding).items()}


def verdict_table(found: Mapping[str, Mapping[str, Sequence[Finding]]]) -> str:
    """How often each verdict was found, for each claim: what the terminal shows."""
    lines = [("data", "claim", "verdicts")]
    for name, claims in found.items():
        lines += [(name, claim, verdicts(rows)) for claim, rows in claims.items()]
    return table(lines)
