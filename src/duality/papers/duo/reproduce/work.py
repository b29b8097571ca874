"""What the jobs of a reproduction do: train a model, measure its likelihood, write and score its samples.

``domains`` says where the results are kept. What must hold: work that is done is not done again; a training that was
stopped continues; a folder that holds another run than the one wanted is refused.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import duality
from duality.evaluation.judge import find_judge
from duality.evaluation.samples import Case
from duality.evaluation.scorers import find_scorers
from duality.evaluation.sweep import RunSampler, Sweep
from duality.files.atomic import write_atomically
from duality.files.progress import Reporter, silent
from duality.models.folder import exists, read_recipe
from duality.papers.duo.reproduce.domains import Base, Student, result_path, run_folder
from duality.papers.duo.reproduce.jobs import Advance, Stopped
from duality.papers.duo.variance.gradients import ALL, LOSS, TOP
from duality.papers.duo.variance.objectives import PAPER_WINDOW, objectives_of
from duality.papers.duo.variance.settings import VarianceSettings
from duality.papers.duo.variance.study import compare_objectives
from duality.recipes import catalogue
from duality.runs.corpus import sequences_of_run
from duality.runs.requests import DistillRequest
from duality.runs.session import TrainingPlan
from duality.runs.train import plan_distillation
from duality.training import checkpoint

BATCH = 128  # samples at a time; the samples do not depend on it


@dataclass(frozen=True)
class Train:
    """Train or distill the model ``key`` with a seed, or finish it, and measure what is asked for.

    ``unit`` is the cost of a step. The likelihood is that of ``sequences`` sequences of held-out text, unless it is 0;
    variances are those of the gradients of ``objectives``, over ``draws`` draws, at the last weights.
    """

    out: Path
    key: str
    seed: int
    model: Base | Student
    base_seed: int
    unit: float
    sequences: int = 0
    objectives: tuple[str, ...] = ()
    draws: int = 0

    def __call__(self, report: Reporter, advance: Advance) -> None:
        """Train to the last step and measure, each once."""
        folder = run_folder(self.out, self.key, self.seed)
        plan = self._plan(folder)
        if checkpoint.latest_step(folder / "checkpoints") < plan.recipe.training.steps:
            report(f"training {folder.name}, {plan.recipe.training.steps} steps")
            outcome = plan.run(device="cpu", watch=lambda record: advance(self.unit))
            if outcome.signal:
                raise Stopped(f"{folder} was stopped at step {outcome.step}")
        for kind, wanted, measure in (
            ("likelihoods", self.sequences, self._likelihood),
            ("variances", self.objectives, self._variances),
        ):
            path = result_path(self.out, kind, self.key, self.seed)
            if wanted and not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, json.dumps(measure(folder)))

    def _plan(self, folder: Path) -> TrainingPlan:
        """The training; a folder with a run of another recipe is refused, but for how it is sampled by default."""
        if isinstance(self.model, Base):
            changes = (f"training.seed={self.seed}", *self.model.changes)
            wanted = TrainingPlan(duality.recipe(self.model.recipe, changes), folder)
        else:
            base = run_folder(self.out, self.model.base, self.base_seed)
            wanted = plan_distillation(
                DistillRequest(base, self.model.method, self.model.rounds, folder, seed=self.seed)
            )
        if not exists(folder):
            return wanted
        held = read_recipe(folder)
        differences = catalogue.differences(held, replace(wanted.recipe, generation=held.generation))
        if differences:
            raise ValueError(
                f"{folder} holds a run with other settings than this reproduction needs "
                f"({'; '.join(differences[:3])}): choose another --out, or delete that folder"
            )
        return TrainingPlan(held, folder, True, wanted.base)

    def _likelihood(self, folder: Path) -> dict[str, object]:
        """Nats per token of held-out text."""
        model = duality.load(folder, device="cpu")
        found = model.likelihood(sequences_of_run(model, folder), num_draws=4, limit=self.sequences)
        return {"nats": found.nats_per_token, "stderr": found.stderr, "kind": found.kind, "tokens": found.num_tokens}

    def _variances(self, folder: Path) -> dict[str, object]:
        """Every statistic, and for every two objectives the logarithm of the ratio with its standard error."""
        settings = VarianceSettings(self.objectives, self.draws, window=PAPER_WINDOW)
        model = duality.load(folder, device="cpu", weights=settings.weights)
        objectives = objectives_of(model, self.objectives, PAPER_WINDOW)
        found = compare_objectives(model, sequences_of_run(model, folder, split="train"), objectives, settings)
        values: dict[str, dict[str, float]] = {name: {} for name in found}
        logs: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
        for key, first, second in product((ALL, TOP, LOSS), found, found):
            own = found[first].by_name[key]
            ratio = own.over(found[second].by_name[key])
            if ratio is None:
                raise ValueError("one of two variances may be 0, so that they have no ratio: take more draws")
            values[first][key] = own.value
            logs.setdefault(key, {}).setdefault(first, {})[second] = math.log(ratio.value), ratio.stderr / ratio.value
        return {"draws": self.draws, "values": values, "log_ratios": logs}


@dataclass(frozen=True)
class Write:
    """The samples of all cases of one run, with their scores; ``unit`` is the cost of a step of a batch."""

    out: Path
    cases: tuple[Case, ...]
    scorer: str | None
    judge: str | None
    unit: float

    def __call__(self, report: Reporter, advance: Advance) -> None:
        """Write and score what is not there yet."""
        run = self.cases[0].run
        scorers = find_scorers(() if self.scorer is None else (self.scorer,), run, report)
        judge = None if self.judge is None else find_judge(self.judge, "cpu", silent)
        sweep = Sweep(self.out, RunSampler("cpu", report, BATCH), silent, judge, None, scorers)
        report(f"sampling {run.name}, {len(self.cases)} settings")
        sweep.measure(self.cases, lambda count: advance(count * self.unit))
