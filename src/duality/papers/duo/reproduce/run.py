"""A reproduction from beginning to end: jobs that train, measure and sample models; findings; report.

    OUT/<domain>/runs, likelihoods, samples      what the jobs keep (``findings``)
    OUT/report.md, report.html, *.png            the report (``report``)
    OUT/findings.json                            every comparison with its figures and its verdict

What must hold: killed at any point and started again it continues, and work that is done is not done again; a folder
that holds another run than the one wanted is refused; the report depends on the kept files alone and is the same to the
digit for the same seeds and numbers of workers' threads, but for what is measured in seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path

import duality
from duality.evaluation.judge import find_judge
from duality.evaluation.samples import Case
from duality.evaluation.scorers import find_scorers
from duality.evaluation.sweep import RunSampler, Sweep
from duality.files.atomic import json_text, output_folder, write_atomically
from duality.files.progress import Reporter, silent, working
from duality.models.folder import exists, read_recipe
from duality.papers.duo.reproduce.claims import Domain
from duality.papers.duo.reproduce.findings import Evidence, Finding
from duality.papers.duo.reproduce.jobs import Advance, Job, execute
from duality.papers.duo.reproduce.report import write_report
from duality.papers.duo.variance.gradients import ALL, LOSS, TOP
from duality.papers.duo.variance.objectives import PAPER_WINDOW
from duality.papers.duo.variance.settings import VarianceSettings
from duality.papers.duo.variance.study import measure_variance
from duality.recipes import catalogue
from duality.recipes.corpus import prepare_corpus
from duality.runs.corpus import sequences_of_run
from duality.runs.requests import DistillRequest
from duality.runs.resume import TrainingPlan
from duality.runs.train import plan_distillation
from duality.training import checkpoint

_BATCH = 128  # samples at a time; the samples do not depend on it
_SAMPLING = 1 / 3  # the cost of a token in a sampling step, if that of a token in a training step is 1
_DISTILLING = 4 / 3  # a step of distillation also calls the teacher


def _train(kept: Evidence, key: str, seed: int, unit: float, report: Reporter, advance: Advance) -> None:
    """Train or distill the model ``key`` to its last step, and measure what the claims ask for, each once.

    ``unit`` is the cost of a step. The likelihood is that of held-out text; variances are those of the gradients of
    objectives, at the last weights. The domain says how much is measured.
    """
    folder, plan = kept.path("runs", key, seed), _plan(kept, key, seed)
    if checkpoint.latest_step(folder / "checkpoints") < plan.recipe.training.steps:
        report(f"training {folder.name}, {plan.recipe.training.steps} steps")
        outcome = plan.run(device="cpu", watch=lambda record: advance(unit))
        if outcome.signal:
            raise KeyboardInterrupt(f"{folder} was stopped at step {outcome.step}")
    domain, objectives = kept.domain, kept.objectives(key)
    likelihood = any(arm.model == key for arm in kept.arms("likelihoods"))
    for kind, wanted, measure in (
        ("likelihoods", likelihood, partial(_measure_likelihood, folder, domain)),
        ("variances", objectives, partial(_measure_variances, folder, objectives, domain.draws)),
    ):
        path = kept.path(kind, key, seed)
        if wanted and not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(measure()))


def _plan(kept: Evidence, key: str, seed: int) -> TrainingPlan:
    """The training; a folder with a run of another recipe is refused, but for how it is sampled by default."""
    folder, model = kept.path("runs", key, seed), kept.domain.models[key]
    if model.base:
        base = kept.path("runs", model.base, kept.domain.base_seed(seed))
        wanted = plan_distillation(DistillRequest(base, model.method, model.rounds, folder, seed=seed))
    else:
        own = (f"training.seed={seed}", f"training.precision={kept.domain.precision}", *model.changes)
        wanted = TrainingPlan(duality.recipe(model.recipe, own), folder)
    if not exists(folder):
        return wanted
    held = read_recipe(folder)
    differences = catalogue.differences(held, replace(wanted.recipe, generation=held.generation))
    if differences:
        raise ValueError(
            f"{folder} holds a run with other settings than this reproduction needs "
            f"({'; '.join(differences[:3])}): choose another --out, or delete that folder"
        )
    return TrainingPlan(held, folder, True, wanted.source)


def _measure_likelihood(folder: Path, domain: Domain) -> dict[str, object]:
    """Nats per token of held-out text."""
    model = duality.load(folder, device="cpu", precision=domain.precision)
    found = model.likelihood(sequences_of_run(model, folder), num_draws=4, limit=domain.sequences)
    return {"nats": found.nats_per_token, "stderr": found.stderr, "kind": found.kind, "tokens": found.num_tokens}


def _measure_variances(folder: Path, objectives: tuple[str, ...], draws: int) -> dict[str, object]:
    """Every statistic, and for every two objectives the logarithm of the ratio with its standard error."""
    settings = VarianceSettings(objectives, draws, window=PAPER_WINDOW)
    found = {row.objective: row.statistics.by_name for row in measure_variance([folder], settings, device="cpu")}
    values: dict[str, dict[str, float]] = {name: {} for name in found}
    logs: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    for key, first, second in product((ALL, TOP, LOSS), found, found):
        own = found[first][key]
        ratio = own.over(found[second][key])
        if ratio is None:
            raise ValueError("one of two variances may be 0, so that they have no ratio: take more draws")
        values[first][key] = own.value
        logs.setdefault(key, {}).setdefault(first, {})[second] = math.log(ratio.value), ratio.stderr / ratio.value
    return {"draws": draws, "values": values, "log_ratios": logs}


def _write(kept: Evidence, key: str, seed: int, unit: float, report: Reporter, advance: Advance) -> None:
    """Write and score the samples of a model that are not there yet; a step of a batch costs ``unit``."""
    domain, run, arms = kept.domain, kept.path("runs", key, seed), [arm for arm in kept.arms() if arm.model == key]
    scorers = find_scorers(() if domain.scorer is None else (domain.scorer,), run, report)
    judge = None if domain.judge is None else find_judge(domain.judge, "cpu", silent)
    source = RunSampler("cpu", report, _BATCH, domain.precision)
    sweep = Sweep(kept.path("samples", key, seed), source, silent, judge, None, scorers)
    cases = _sort_rounds(case for arm in arms for case in kept.cases(arm, seed))
    report(f"sampling {run.name}, {len(cases)} settings")
    rows = {row.key: row for row in sweep.measure(cases, lambda count: advance(count * unit))}
    if not domain.diversity:
        counted = _sort_rounds(kept.counted_case(arm, seed, rows) for arm in arms)
        report(f"sampling {run.name} at its best temperatures")
        sweep.measure([*cases, *counted], lambda count: advance(count * unit))


def _sort_rounds(cases: Iterable[Case]) -> list[Case]:
    """Cases in an order in which each round of a distillation is loaded once."""
    return sorted(cases, key=lambda case: -1 if case.round is None else case.round)


def reproduce(
    out: Path,
    budget: str,
    domains: Sequence[Domain],
    names: tuple[str, ...] = (),
    *,
    workers: int = 2,
    threads: int = 1,
    report: Reporter,
) -> dict[str, dict[str, list[Finding]]]:
    """Do all that these claims need (none: all), decide them, and write the report; the findings by domain and claim.

    ``workers`` processes with ``threads`` threads each do the work. ``budget`` is the name of that of the domains.
    """
    if workers < 1 or threads < 1:
        raise ValueError(f"workers is {workers}, threads {threads}: each must be at least 1")
    chapters = [Evidence(out / domain.name, domain, domain.read_claims(names)) for domain in domains]
    jobs = [job for each in chapters for job in _jobs_of(each)]
    for domain in domains:
        base = next(model for model in domain.models.values() if not model.base)
        prepare_corpus(catalogue.recipe(base.recipe), report)  # once, before several processes need it
    output_folder(out)
    report(f"{len(jobs)} jobs in {workers} processes of {threads} thread(s), kept in {out}")
    with working(report, "reproducing", sum(job.cost for job in jobs)) as advance:
        execute(jobs, workers=workers, threads=threads, report=report, advance=advance)
    found = {each.domain.name: each.findings for each in chapters}
    kept = {domain: {claim: list(map(asdict, rows)) for claim, rows in own.items()} for domain, own in found.items()}
    write_atomically(out / "findings.json", json_text(kept, indent=1))  # a figure that there is not is null
    write_report(out, budget, chapters)
    return found


def _jobs_of(kept: Evidence) -> list[Job]:
    """The jobs of a domain, what takes long first: each model is trained and measured, then sampled, as claims need."""
    domain, arms = kept.domain, kept.arms()
    sampled = {arm.model for arm in arms}
    needed = sampled | {arm.model for arm in kept.arms("likelihoods", "variances")}
    needed |= {domain.models[key].base for key in sampled} - {""}
    costs, found = {key: _training_cost(domain, key) for key in needed}, list[Job]()
    for key, (unit, steps) in sorted(costs.items(), key=lambda each: (-each[1][1], each[0])):
        steps, base = steps + domain.draws * len(kept.objectives(key)), domain.models[key].base
        for seed in domain.seeds(key):
            needs = (f"{domain.name}: train {base}-{domain.base_seed(seed)}",) if base else ()
            work = partial(_train, kept, key, seed, unit)
            found.append(Job(f"{domain.name}: train {key}-{seed}", needs, unit * steps, work))
        for seed in domain.seeds(key) if key in sampled else ():
            cases = [case for arm in arms if arm.model == key for case in kept.cases(arm, seed)]
            if not domain.diversity:  # as many again at the best temperature, twice as large
                cases += [
                    replace(case, num=2 * case.num) for case in cases if case.temperature == domain.temperatures[0]
                ]
            each_step = _BATCH * domain.length * _SAMPLING
            cost = each_step * sum(case.steps * -(-case.num // _BATCH) for case in cases)
            work = partial(_write, kept, key, seed, each_step)
            needs = (f"{domain.name}: train {key}-{seed}",)
            found.append(Job(f"{domain.name}: samples {key}-{seed}", needs, cost, work))
    return found


def _training_cost(domain: Domain, key: str) -> tuple[float, int]:
    """The cost of a training step of a model, and how many steps it has."""
    model = domain.models[key]
    base = domain.models[model.base or key]
    recipe = catalogue.recipe(base.recipe, base.changes)
    unit = float(recipe.training.batch_size * recipe.data.length)
    if model.base:
        return unit * _DISTILLING, (model.rounds.rounds or 0) * (model.rounds.round_steps or 0)
    return unit, recipe.training.steps
