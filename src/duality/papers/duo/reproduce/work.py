"""What the jobs of a reproduction do: train a model, measure its likelihood, write and score its samples.

    OUT/runs/<key>-<seed>/                  the run folders
    OUT/likelihoods/<key>-<seed>.json       nats per token of held-out text
    OUT/variances/<key>-<seed>.json         variances of gradients, of several objectives
    OUT/samples/<key>-<seed>/               a sweep's folder: samples, scores, quality.json

What must hold: work that is done is not done again; a training that was stopped continues; a folder that holds another
run than the one wanted is refused.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from duality.evaluation.judge import judge_named
from duality.evaluation.scorers import scorers_named
from duality.evaluation.sweep.runs import RunSampler
from duality.evaluation.sweep.samples import Case
from duality.evaluation.sweep.sweep import Sweep
from duality.files.atomic import write_atomically
from duality.files.progress import Reporter
from duality.models.folder import exists, read_recipe
from duality.models.model import load
from duality.papers.duo.reproduce.jobs import Advance, Stopped
from duality.papers.duo.reproduce.models import Base, Student, run_folder
from duality.papers.duo.variance.gradients import ALL, LOSS, TOP, Repeated
from duality.papers.duo.variance.objectives import PAPER_WINDOW, objectives_of
from duality.papers.duo.variance.study import VarianceSettings, compare_objectives
from duality.recipes import catalogue
from duality.recipes.recipe import Recipe
from duality.runs.corpus import sequences_of_run
from duality.runs.requests import DistillRequest
from duality.runs.session import TrainingPlan
from duality.runs.train import plan_distillation
from duality.training import checkpoint

BATCH = 128  # samples at a time; the samples do not depend on it


@dataclass(frozen=True)
class Train:
    """Train or distill the model ``key`` with a seed, or finish it."""

    out: Path
    key: str
    seed: int
    model: Base | Student
    base_seed: int
    unit: float

    def __call__(self, report: Reporter, advance: Advance) -> None:
        """Train to the last step; ``unit`` is the cost of a step."""
        folder = run_folder(self.out, self.key, self.seed)
        plan = self.plan(folder)
        if checkpoint.latest_step(folder / "checkpoints") >= plan.recipe.training.steps:
            return
        report(f"training {folder.name}, {plan.recipe.training.steps} steps")
        outcome = plan.run(device="cpu", report=lambda text: None, watch=lambda record: advance(self.unit))
        if outcome.signal:
            raise Stopped(f"{folder} was stopped at step {outcome.step}")

    def plan(self, folder: Path) -> TrainingPlan:
        """The training; a folder with another run is refused."""
        if isinstance(self.model, Base):
            changes = (f"training.seed={self.seed}", *self.model.changes)
            wanted = TrainingPlan(catalogue.recipe(self.model.recipe, changes), folder, exists(folder))
        else:
            base = run_folder(self.out, self.model.base, self.base_seed)
            model = self.model
            wanted = plan_distillation(
                DistillRequest(base, model.method, model.rounds, folder, seed=self.seed, set=model.changes)
            )
        if not exists(folder):
            return wanted
        check_same(folder, wanted.recipe)
        return TrainingPlan(read_recipe(folder), folder, True, wanted.base)


def check_same(folder: Path, wanted: Recipe) -> None:
    """Refuse a folder that holds a run of another recipe; how a model is sampled by default may differ."""
    held = read_recipe(folder)
    differences = catalogue.differences(held, replace(wanted, generation=held.generation))
    if differences:
        raise ValueError(
            f"{folder} holds a run with other settings than this reproduction needs ({'; '.join(differences[:3])}): "
            "choose another --out, or delete that folder"
        )


@dataclass(frozen=True)
class Measure:
    """The likelihood of held-out text under the model ``key`` with a seed."""

    out: Path
    key: str
    seed: int
    sequences: int

    @property
    def path(self) -> Path:
        """Where the result is kept."""
        return self.out / "likelihoods" / f"{self.key}-{self.seed}.json"

    def __call__(self, report: Reporter, advance: Advance) -> None:
        """Measure once."""
        if self.path.is_file():
            return
        folder = run_folder(self.out, self.key, self.seed)
        model = load(folder, device="cpu")
        found = model.likelihood(sequences_of_run(model, folder), num_draws=4, limit=self.sequences)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"nats": found.nats_per_token, "stderr": found.stderr, "kind": found.kind, "tokens": found.num_tokens}
        write_atomically(self.path, json.dumps(content))


@dataclass(frozen=True)
class Vary:
    """The variances of gradients of several objectives, at the last weights of the model ``key`` with a seed."""

    out: Path
    key: str
    seed: int
    objectives: tuple[str, ...]
    draws: int

    @property
    def path(self) -> Path:
        """Where the result is kept."""
        return self.out / "variances" / f"{self.key}-{self.seed}.json"

    def __call__(self, report: Reporter, advance: Advance) -> None:
        """Measure once: every statistic, and for every two objectives the logarithm of the ratio with its error."""
        if self.path.is_file():
            return
        folder = run_folder(self.out, self.key, self.seed)
        settings = VarianceSettings(self.objectives, self.draws, window=PAPER_WINDOW)
        model = load(folder, device="cpu", weights=settings.weights)
        sequences = sequences_of_run(model, folder, split="train")
        found = compare_objectives(model, sequences, objectives_of(model, self.objectives, settings.window), settings)
        content = {
            statistic: {
                first: {second: log_ratio(own.by_name[statistic], found[second].by_name[statistic]) for second in found}
                for first, own in found.items()
            }
            for statistic in (ALL, TOP, LOSS)
        }
        values = {name: {key: own.by_name[key].value for key in (ALL, TOP, LOSS)} for name, own in found.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps({"draws": self.draws, "values": values, "log_ratios": content}))


@dataclass(frozen=True)
class Ratio:
    """Two variances, the logarithm of their ratio, and its standard error."""

    first: float
    second: float
    log: float
    error: float


def log_ratio(first: Repeated, second: Repeated) -> tuple[float, float]:
    """The logarithm of the ratio of two variances on the same draws, and its standard error."""
    ratio = first.over(second)
    if ratio is None:
        raise ValueError("one of two variances may be 0, so that they have no ratio: take more draws")
    return math.log(ratio.value), ratio.stderr / ratio.value


@dataclass(frozen=True)
class Write:
    """The samples of all cases of one run, with their scores."""

    out: Path
    cases: tuple[Case, ...]
    scorer: str | None
    judge: str | None
    unit: float

    def __call__(self, report: Reporter, advance: Advance) -> None:
        """Write and score what is not there yet; ``unit`` is the cost of a step of a batch."""
        run = self.cases[0].run
        sampler = RunSampler("cpu", report, BATCH)
        scorers = scorers_named(() if self.scorer is None else (self.scorer,), run, report)
        judge = None if self.judge is None else judge_named(self.judge, "cpu", lambda text: None)
        sweep = Sweep(self.out, sampler, lambda text: None, judge, None, scorers)
        report(f"sampling {run.name}, {len(self.cases)} settings")
        sweep.measure(self.cases, lambda count: advance(count * self.unit))


@dataclass(frozen=True)
class Several:
    """Pieces of work in one job, one after the other: each process takes seconds to begin."""

    pieces: tuple[Train | Measure | Vary, ...]

    def __call__(self, report: Reporter, advance: Advance) -> None:
        """Do all of them."""
        for piece in self.pieces:
            piece(report, advance)


def read_likelihood(out: Path, key: str, seed: int) -> tuple[float, float]:
    """Nats per token and their standard error, as kept."""
    found = json.loads(Measure(out, key, seed, 1).path.read_text(encoding="utf-8"))
    return float(found["nats"]), float(found["stderr"])


def read_variances(out: Path, key: str, seed: int, statistic: str, pair: tuple[str, str]) -> Ratio:
    """What ``Vary`` has kept about two objectives."""
    found = json.loads(Vary(out, key, seed, (), 0).path.read_text(encoding="utf-8"))
    first, second = (float(found["values"][name][statistic]) for name in pair)
    log, error = found["log_ratios"][statistic][pair[0]][pair[1]]
    return Ratio(first, second, float(log), float(error))
