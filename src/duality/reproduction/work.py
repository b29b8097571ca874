"""What the jobs of a reproduction do: train a model, measure its likelihood, write and score its samples.

    OUT/runs/<key>-<seed>/                  the run folders
    OUT/likelihoods/<key>-<seed>.json       nats per token of held-out text
    OUT/samples/<key>-<seed>/               a sweep's folder: samples, scores, quality.json

What must hold: work that is done is not done again; a training that was stopped continues; a folder that holds another
run than the one wanted is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from duality.data.files import write_atomically
from duality.evaluation.cases import Case
from duality.evaluation.sweep import Sweep
from duality.protocols import Reporter
from duality.recipes import catalogue
from duality.recipes.recipe import Recipe
from duality.reproduction.jobs import Advance
from duality.reproduction.models import Base, Student, run_folder
from duality.runs.api import TrainingPlan, TrainingStopped, plan_distillation
from duality.runs.corpora import sequences_of_run
from duality.runs.folder import exists, read_recipe
from duality.runs.judging import judge_named, scorers_named
from duality.runs.model import load
from duality.runs.sampling import RunSampler
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
            raise TrainingStopped(folder, outcome)

    def plan(self, folder: Path) -> TrainingPlan:
        """The training; a folder with another run is refused."""
        if isinstance(self.model, Base):
            changes = (f"training.seed={self.seed}", *self.model.changes)
            wanted = TrainingPlan(catalogue.recipe(self.model.recipe, changes), folder, exists(folder))
        else:
            base = run_folder(self.out, self.model.base, self.base_seed)
            wanted = plan_distillation(
                base, self.model.rounds, method=self.model.method, out=folder, seed=self.seed, set=self.model.changes
            )
        if not exists(folder):
            return wanted
        check_same(folder, wanted.recipe)
        return TrainingPlan(wanted.recipe, folder, True, wanted.base)


def check_same(folder: Path, wanted: Recipe) -> None:
    """Refuse a folder that holds a run of another recipe."""
    differences = catalogue.differences(read_recipe(folder), wanted)
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

    pieces: tuple[Train | Measure, ...]

    def __call__(self, report: Reporter, advance: Advance) -> None:
        """Do all of them."""
        for piece in self.pieces:
            piece(report, advance)


def read_likelihood(out: Path, key: str, seed: int) -> tuple[float, float]:
    """Nats per token and their standard error, as kept."""
    found = json.loads(Measure(out, key, seed, 1).path.read_text(encoding="utf-8"))
    return float(found["nats"]), float(found["stderr"])
