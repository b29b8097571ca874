"""A reproduction from beginning to end: jobs, findings, report.

    OUT/<domain>/runs, likelihoods, samples      what the jobs keep (``results``)
    OUT/report.md, report.html, *.png            the report (``report``, ``pictures``)
    OUT/findings.json                            every comparison with its figures and its verdict

What must hold: killed at any point and started again it continues; the report depends on the kept files alone and is
the same to the digit for the same seeds and numbers of workers' threads, but for what is measured in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from duality.evaluation.tables import table
from duality.files.atomic import json_text, output_folder, write_atomically
from duality.files.progress import Reporter
from duality.papers.duo.reproduce.claims import Claim, chosen_claims
from duality.papers.duo.reproduce.domains import Base, Budget, Domain, Student
from duality.papers.duo.reproduce.findings import Evidence, Finding, cases_of
from duality.papers.duo.reproduce.jobs import Advance, Job, execute
from duality.papers.duo.reproduce.report import count_verdicts, write_report
from duality.papers.duo.reproduce.work import BATCH, Train, Write
from duality.recipes import catalogue
from duality.recipes.corpus import prepare_corpus

_SAMPLING = 1 / 3  # the cost of a token in a sampling step, if that of a token in a training step is 1
_DISTILLING = 4 / 3  # a step of distillation also calls the teacher


def reproduce(
    out: Path,
    budget: Budget,
    names: tuple[str, ...] = (),
    *,
    workers: int = 2,
    threads: int = 1,
    report: Reporter,
    show: Callable[[float], AbstractContextManager[Advance]],
) -> dict[str, dict[str, list[Finding]]]:
    """Do all that these claims need (none: all), decide them, and write the report; the findings by domain and claim.

    ``workers`` processes with ``threads`` threads each do the work.
    """
    if workers < 1 or threads < 1:
        raise ValueError(f"workers is {workers}, threads {threads}: each must be at least 1")
    chapters = [Evidence(out / domain.name, domain, chosen_claims(names, domain)) for domain in budget.domains]
    jobs = [job for each in chapters for job in _jobs_of(each.out, each.domain, each.claims)]
    for domain in budget.domains:
        base = next(model for model in domain.models.values() if isinstance(model, Base))
        prepare_corpus(catalogue.recipe(base.recipe), report)  # once, before several processes need it
    output_folder(out)
    report(f"{len(jobs)} jobs in {workers} processes of {threads} thread(s), kept in {out}")
    with show(sum(job.cost for job in jobs)) as advance:
        execute(jobs, workers=workers, threads=threads, report=report, advance=advance)
    found = {each.domain.name: each.findings for each in chapters}
    kept = {
        name: {claim: [asdict(each) for each in rows] for claim, rows in claims.items()}
        for name, claims in found.items()
    }
    write_atomically(out / "findings.json", json_text(kept, indent=1))  # a figure that there is not is null
    write_report(out, budget.name, chapters)
    return found


def _jobs_of(out: Path, domain: Domain, claims: Sequence[Claim]) -> list[Job]:
    """The jobs of a domain: trainings, likelihoods and samples of all claims, what takes long first."""
    measured = {key for claim in claims for key in claim.measured()}
    varied = {key for claim in claims for key in claim.varied()}
    sampled = {arm.model for claim in claims for arm in claim.arms()}
    bases = {model.base for key in sampled if isinstance(model := domain.models[key], Student)}
    found: list[Job] = []
    for key in sorted(measured | varied | sampled | bases, key=lambda key: (-_steps(key, domain), key)):
        seeds = domain.seeds(key)
        found += [_training(out, domain, key, seed, claims) for seed in seeds]
        found += [_writing(out, domain, key, seed, claims) for seed in seeds if key in sampled]
    return found


def _training(out: Path, domain: Domain, key: str, seed: int, claims: Sequence[Claim]) -> Job:
    """Train a model with a seed and measure the likelihood and the variances that the claims need."""
    model, amount, base_seed = domain.models[key], domain.amount, domain.amount.seeds.base_seed(seed)
    base = domain.models[model.base] if isinstance(model, Student) else model
    assert isinstance(base, Base)
    recipe = catalogue.recipe(base.recipe, base.changes)
    unit = float(recipe.training.batch_size * recipe.data.length)
    needs: tuple[str, ...] = ()
    if isinstance(model, Student):
        unit *= _DISTILLING
        needs = (_name(domain, "train", model.base, base_seed),)
    objectives = tuple(dict.fromkeys(name for claim in claims for name in claim.varied().get(key, ())))
    sequences = amount.sequences if any(key in claim.measured() for claim in claims) else 0
    work = Train(out, key, seed, model, base_seed, unit, sequences, objectives, amount.draws)
    cost = unit * (_steps(key, domain) + amount.draws * len(objectives))
    return Job(_name(domain, "train", key, seed), needs, cost, work)


def _steps(key: str, domain: Domain) -> int:
    """The training steps of a model."""
    model = domain.models[key]
    if isinstance(model, Base):
        return catalogue.recipe(model.recipe, model.changes).training.steps
    return domain.rounds_of(key) * (model.rounds.round_steps or 0)


def _writing(out: Path, domain: Domain, key: str, seed: int, claims: Sequence[Claim]) -> Job:
    """Write and score all samples of a model that some claim needs."""
    arms = dict.fromkeys(arm for claim in claims for arm in claim.arms() if arm.model == key)
    cases = [case for arm in arms for case in cases_of(arm, seed, out, domain)]
    cases.sort(key=lambda case: -1 if case.round is None else case.round)  # each round is loaded once
    unit = BATCH * domain.length * _SAMPLING
    cost = unit * sum(case.steps * -(-case.num // BATCH) for case in cases)
    work = Write(out / "samples" / cases[0].run.name, tuple(cases), domain.scorer, domain.judge, unit)
    return Job(_name(domain, "samples", key, seed), (_name(domain, "train", key, seed),), cost, work)


def _name(domain: Domain, kind: str, key: str, seed: int) -> str:
    """The name of a job."""
    return f"{domain.name}: {kind} {key}-{seed}"


def verdict_table(found: Mapping[str, Mapping[str, Sequence[Finding]]]) -> str:
    """How often each verdict was found, for each claim: what the terminal shows."""
    lines = [("data", "claim", "verdicts")]
    for name, claims in found.items():
        lines += [(name, claim, count_verdicts(rows)) for claim, rows in claims.items()]
    return table(lines)
