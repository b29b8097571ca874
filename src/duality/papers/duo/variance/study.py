"""The variance of a run's gradients: what `duality variance` measures.

A draw is a minibatch of the run's own training text, with fresh sequences, times and noise, exactly as a training step
has them (``training.loop.gradients``); its number and the seed decide everything. All objectives of a checkpoint are
measured on the same draws, so that their ratios are paired.

    rows = measure_variance([run], VarianceSettings(objectives=("plain", "tau=0.001")), out=folder)
    found = compare_objectives(model, sequences, {"mine": my_objective}, VarianceSettings())

What must hold: a seed gives the same numbers; dividing a minibatch into micro-batches changes rounding only; the
weights of the run are never changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from duality.data.loader import Loader
from duality.data.packing import Sequences
from duality.diffusion.schedules import Dual
from duality.evaluation.sweep.samples import run_names
from duality.files.atomic import json_text, output_folder, write_atomically
from duality.files.progress import Reporter, silent
from duality.models.model import Model, ignore, load, network
from duality.noise import check_seed
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.papers.duo.variance.gradients import (
    GROUPS,
    STATISTICS,
    Draw,
    Statistics,
    check_draws,
    check_groups,
    collect,
)
from duality.papers.duo.variance.objectives import PairedBound, objectives_of
from duality.papers.duo.variance.tables import VarianceRow, markdown, plot_variance
from duality.protocols import Objective, Phase, Schedule, Vocabulary
from duality.runs.corpus import sequences_of_run
from duality.training import checkpoint
from duality.training.adapters import merged
from duality.training.loop import gradients
from duality.training.settings import Training, of_all_weights
from duality.training.state import TrainState, load_weights

Advance = Callable[[int], None]
Show = Callable[[int], AbstractContextManager[Advance]]


@dataclass(frozen=True)
class VarianceSettings:
    """What is measured. ``objectives`` are names (``variance_objectives``), those that fit the run if there are none.

    ``steps`` are checkpoints that the run has kept; ``batch`` is the run's own batch size if None; ``window`` is the
    range of alpha of the objectives with a window. ``limit_seconds`` lowers the number of draws to what fits.
    """

    objectives: tuple[str, ...] = ()
    num_draws: int = 400
    batch: int | None = None
    micro_batch: int = 0
    groups: int = GROUPS
    steps: Literal["last", "all"] | tuple[int, ...] = "last"
    weights: Literal["model", "ema"] = "model"
    window: tuple[float, float] | None = None
    seed: int = 0
    limit_seconds: float | None = None

    def __post_init__(self) -> None:
        check_groups(1, self.groups)
        check_draws(self.num_draws, self.groups)
        if (self.batch is not None and self.batch < 1) or self.micro_batch < 0:
            raise ValueError(
                f"batch {self.batch}, micro-batch {self.micro_batch}: a minibatch needs at least 1 sequence, and a "
                "micro-batch of 0 is the whole minibatch"
            )
        check_seed(self.seed)
        if self.limit_seconds is not None and not self.limit_seconds > 0:
            raise ValueError(f"limit-seconds is {self.limit_seconds}: it must be positive; leave it out for no limit")

    def training(self, model: Model) -> Training:
        """The settings of a training step from which draws are made; it has a gradient for all weights."""
        return replace(
            of_all_weights(model.recipe.training),
            seed=self.seed,
            batch_size=self.batch or model.recipe.training.batch_size,
            micro_batch=self.micro_batch,
            compile=False,
        )


def hidden_progress(_total: int) -> AbstractContextManager[Advance]:
    """Progress that is not shown."""
    return nullcontext(ignore)


def measure_variance(
    runs: Sequence[Path | str],
    settings: VarianceSettings,
    *,
    out: Path | None = None,
    device: torch.device | str = "auto",
    corpus: str | Path | None = None,
    report: Reporter = silent,
    show: Show = hidden_progress,
) -> list[VarianceRow]:
    """Measure runs at their checkpoints; ``out`` gets variance.json, variance.md and variance.png.

    ``corpus`` is where the corpus of the runs is now, if it was moved.
    """
    if not runs:
        raise ValueError("nothing to measure: name run folders that `duality train --out` wrote")
    chosen = [(Path(run).expanduser(), model) for run in runs for model in models_of(run, settings, report, device)]
    for _, model in chosen:  # a name that does not fit is refused before anything is computed
        objectives_of(model, settings.objectives, settings.window)
    if out is not None:
        output_folder(out)
    names, rows = run_names(folder for folder, _ in chosen), list[VarianceRow]()
    share = None if settings.limit_seconds is None else settings.limit_seconds / len(chosen)
    for folder, model in chosen:
        sequences = sequences_of_run(model, folder, split="train", corpus=corpus, report=report)
        objectives = objectives_of(model, settings.objectives, settings.window)
        own = replace(settings, limit_seconds=share)
        own = replace(own, num_draws=affordable_draws(model, sequences, objectives, own, report))
        with show(own.num_draws * len(objectives)) as advance:
            found = compare_objectives(model, sequences, objectives, own, advance)
        rows += rows_of(names[folder], model, objectives, found, own)
        if out is not None:
            write(rows, out)
    return rows


def models_of(run: Path | str, settings: VarianceSettings, report: Reporter, device: torch.device | str) -> list[Model]:
    """The run's model at every checkpoint that is asked for."""
    newest = load(run, report, device, settings.weights)
    if settings.steps == "last":
        return [newest]
    folder = Path(run).expanduser() / "checkpoints"
    wanted = checkpoint.steps_saved(folder) if settings.steps == "all" else settings.steps
    return [at_step(newest, folder, step, settings.weights) for step in wanted]


def at_step(model: Model, folder: Path, step: int, weights: str) -> Model:
    """The model with the weights of another checkpoint."""
    saved = checkpoint.load(checkpoint.kept_step(folder, step, (weights,)), (weights,))
    denoiser = trainable(model)
    load_weights(denoiser, merged(saved.groups[weights], model.recipe.training))
    return replace(model, step=saved.step, denoiser=denoiser.requires_grad_(False))


def trainable(model: Model) -> nn.Module:
    """A copy of the model's network in which the weights that training changes have gradients."""
    vocabulary = Vocabulary(model.tokenizer.vocab_size, len(model.label_names))
    copy = network(model.recipe, vocabulary, model.device)
    load_weights(copy, dict(model.denoiser.named_parameters()))
    return copy


def draws_of(model: Model, sequences: Sequences, objective: Objective, settings: VarianceSettings) -> tuple[Draw, int]:
    """The draws of an objective as a function of their number, and the number of weights."""
    training = settings.training(model)
    state = TrainState.fresh(trainable(model), training)
    parameters = [value for value in state.model.parameters() if value.requires_grad]
    loader, phase = Loader(sequences, training.batch_size, training.seed), Phase("variance", objective, 1)

    def draw(number: int) -> tuple[Tensor, float]:
        state.step = number
        state.optimizer.zero_grad()
        loss, _ = gradients(state, loader, phase, training)
        found = [torch.zeros_like(value) if value.grad is None else value.grad for value in parameters]
        flat = torch.cat([each.flatten() for each in found])
        if not math.isfinite(float(loss)) or not bool(flat.isfinite().all()):
            raise ValueError(
                f"draw {number} has the loss {float(loss)} or a gradient that is not finite: the weights of step "
                f"{model.step} are damaged or diverged; measure an earlier checkpoint"
            )
        return flat, float(loss)

    return draw, sum(value.numel() for value in parameters)


def compare_objectives(
    model: Model,
    sequences: Sequences,
    objectives: Mapping[str, Objective],
    settings: VarianceSettings,
    advance: Advance = ignore,
) -> dict[str, Statistics]:
    """The statistics of each objective, all on the same draws; objectives may be any, under names of your own."""
    found = {}
    for name, objective in objectives.items():
        draw, num_weights = draws_of(model, sequences, objective, settings)
        found[name] = collect(
            draw, num_weights, settings.num_draws, groups=settings.groups, device=model.device, advance=advance
        )
    return found


def affordable_draws(
    model: Model,
    sequences: Sequences,
    objectives: Mapping[str, Objective],
    settings: VarianceSettings,
    report: Reporter,
) -> int:
    """The number of draws: what is wanted, or less if the time limit is shorter. One draw of each is timed."""
    if settings.limit_seconds is None:
        return settings.num_draws
    each_draw = 0.0
    for objective in objectives.values():
        draw, _ = draws_of(model, sequences, objective, settings)
        draw(0)  # the first one also allocates
        started = time.monotonic()
        draw(1)
        each_draw += time.monotonic() - started
    rounds = int(settings.limit_seconds / (each_draw * settings.groups))
    if rounds < 2:
        raise ValueError(
            f"limit-seconds leaves {settings.limit_seconds:.0f} s for a checkpoint, and the fewest draws "
            f"({2 * settings.groups} of {len(objectives)} objectives) take {2 * settings.groups * each_draw:.0f} s: "
            "raise it, or name fewer objectives"
        )
    if rounds * settings.groups < settings.num_draws:
        report(f"{rounds * settings.groups} draws instead of {settings.num_draws}, to stay within the time limit")
    return min(settings.num_draws, rounds * settings.groups)


def rows_of(
    run: str,
    model: Model,
    objectives: Mapping[str, Objective],
    found: Mapping[str, Statistics],
    settings: VarianceSettings,
) -> list[VarianceRow]:
    """A row for each objective, with the ratios to the first."""
    first = next(iter(found.values()))
    return [
        VarianceRow(
            run=run,
            step=model.step,
            weights=settings.weights,
            objective=name,
            about=repr(objectives[name]),
            window=window_of(objectives[name]),
            infinite=is_infinite(objectives[name]),
            batch=settings.batch or model.recipe.training.batch_size,
            length=model.length,
            seed=settings.seed,
            statistics=own,
            ratios={key: own.by_name[key].over(first.by_name[key]) for key in STATISTICS},
        )
        for name, own in found.items()
    ]


def window_of(objective: Objective) -> tuple[float, float] | None:
    """The range of alpha that an objective is restricted to; None for all levels."""
    schedule = objective.schedule if isinstance(objective, (PairedBound, ContinuousTimeBound)) else None
    return (schedule.alpha_min, schedule.alpha_max) if isinstance(schedule, Dual) else None


def is_infinite(objective: Objective) -> bool:
    """Whether the variance of a bound is infinite at its times.

    A change has probability 1 - alpha and weight alpha' / (1 - alpha), so that the second moment is the integral of
    alpha'^2 / (1 - alpha). With 1 - alpha = c t^power near t = 0 it is infinite for power <= 1.
    """
    if not isinstance(objective, ContinuousTimeBound) or window_of(objective) is not None:
        return False
    return first_power(objective.schedule) < 1.001


def first_power(schedule: Schedule) -> float:
    """The power of t with which 1 - alpha leaves 0; infinite if it is not 0 at t = 0."""
    if float(schedule.alpha(torch.zeros((), dtype=torch.float64))) < 1:
        return math.inf
    near, far = (1 - schedule.alpha(torch.tensor([1e-5, 1e-4], dtype=torch.float64))).tolist()
    return math.log10(far / near)


def write(rows: Sequence[VarianceRow], out: Path) -> None:
    """The rows as JSON, as Markdown and as a figure."""
    write_atomically(out / "variance.json", json_text([row.to_json() for row in rows], indent=1))
    write_atomically(out / "variance.md", markdown(rows))
    plot_variance(rows, out / "variance.png")
