"""A reproduction from beginning to end: jobs, findings, report.

    OUT/<domain>/runs, likelihoods, samples      what the jobs keep (``domains``)
    OUT/report.md, report.html, *.png            the report (``report``)
    OUT/findings.json                            every comparison with its figures and its verdict

What must hold: killed at any point and started again it continues; the report depends on the kept files alone and is
the same to the digit for the same seeds and numbers of workers' threads, but for what is measured in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from duality.evaluation.tables import table
from duality.files.atomic import json_text, output_folder, write_atomically
from duality.files.progress import Reporter, working
from duality.papers.duo.reproduce.claims import Arm, Claim, Likelihoods, Variances, read_claims
from duality.papers.duo.reproduce.domains import Base, Budget, Domain, Student
from duality.papers.duo.reproduce.findings import Evidence, Finding, cases_of
from duality.papers.duo.reproduce.jobs import Job, execute
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
) -> dict[str, dict[str, list[Finding]]]:
    """Do all that these claims need (none: all), decide them, and write the report; the findings by domain and claim.

    ``workers`` processes with ``threads`` threads each do the work.
    """
    if workers < 1 or threads < 1:
        raise ValueError(f"workers is {workers}, threads {threads}: each must be at least 1")
    chapters = [Evidence(out / domain.name, domain, read_claims(names, domain)) for domain in budget.domains]
    jobs = [job for each in chapters for job in _jobs_of(each.out, each.domain, each.claims)]
    for domain in budget.domains:
        base = next(model for model in domain.models.values() if isinstance(model, Base))
        prepare_corpus(catalogue.recipe(base.recipe), report)  # once, before several processes need it
    output_folder(out)
    report(f"{len(jobs)} jobs in {workers} processes of {threads} thread(s), kept in {out}")
    with working(report, "reproducing", sum(job.cost for job in jobs)) as advance:
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
    """The jobs of a domain, what takes long first: each model is trained and measured, then sampled, as claims need."""
    compared = [each for claim in claims for each in claim.comparisons]
    likelihoods = {key for each in compared if isinstance(each, Likelihoods) for key in (each.first, each.second)}
    variances = [each for each in compared if isinstance(each, Variances)]
    arms = dict.fromkeys(arm for claim in claims for arm in claim.arms())
    sampled = {arm.model for arm in arms}
    bases = {model.base for key in sampled if isinstance(model := domain.models[key], Student)}
    keys = likelihoods | {each.model for each in variances} | sampled | bases
    found: list[Job] = []
    for key in sorted(keys, key=lambda key: (-_steps(key, domain), key)):
        named = [name for each in variances if each.model == key for name in (each.first, each.second)]
        objectives, sequences = tuple(dict.fromkeys(named)), domain.amount.sequences if key in likelihoods else 0
        own = [arm for arm in arms if arm.model == key]
        found += [_training_job(out, domain, key, seed, sequences, objectives) for seed in domain.seeds(key)]
        found += [_sampling_job(out, domain, key, seed, own) for seed in domain.seeds(key) if own]
    return found


def _training_job(out: Path, domain: Domain, key: str, seed: int, sequences: int, objectives: tuple[str, ...]) -> Job:
    """Train a model with a seed and measure its likelihood and variances, unless there is nothing to measure."""
    model, amount, base_seed = domain.models[key], domain.amount, domain.amount.seeds.base_seed(seed)
    base = domain.models[model.base] if isinstance(model, Student) else model
    assert isinstance(base, Base)
    recipe = catalogue.recipe(base.recipe, base.changes)
    unit = float(recipe.training.batch_size * recipe.data.length)
    needs: tuple[str, ...] = ()
    if isinstance(model, Student):
        unit *= _DISTILLING
        needs = (_name(domain, "train", model.base, base_seed),)
    work = Train(out, key, seed, model, base_seed, unit, sequences, objectives, amount.draws)
    cost = unit * (_steps(key, domain) + amount.draws * len(objectives))
    return Job(_name(domain, "train", key, seed), needs, cost, work)


def _steps(key: str, domain: Domain) -> int:
    """The training steps of a model."""
    model = domain.models[key]
    if isinstance(model, Base):
        return catalogue.recipe(model.recipe, model.changes).training.steps
    return domain.rounds_of(key) * (model.rounds.round_steps or 0)


def _sampling_job(out: Path, domain: Domain, key: str, seed: int, arms: Sequence[Arm]) -> Job:
    """Write and score all samples of a model that some claim needs."""
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
