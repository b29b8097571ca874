"""The variance of a run's gradients: what `duality variance` measures.

    rows = measure_variance([run], VarianceSettings(objectives=("plain", "tau=0.001")), out=folder)

Runs are measured at their checkpoints, each checkpoint with all its objectives on the same draws (``draws``). A row is
one objective at one checkpoint (``tables``). What must hold: a seed gives the same numbers; an objective that does not
fit a run is refused before anything is computed; the runs are never changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from duality.diffusion.schedules import Dual
from duality.evaluation.sweep.samples import run_names
from duality.files.atomic import json_text, output_folder, write_atomically
from duality.files.progress import Reporter, silent
from duality.models.model import Model, ignore, load
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.papers.duo.variance.draws import Advance, affordable_draws, compare_objectives
from duality.papers.duo.variance.gradients import STATISTICS, Statistics
from duality.papers.duo.variance.objectives import PairedBound, objectives_of
from duality.papers.duo.variance.settings import VarianceSettings
from duality.papers.duo.variance.tables import VarianceRow, markdown, plot_variance
from duality.protocols import Objective, Schedule
from duality.runs.corpus import sequences_of_run
from duality.training import checkpoint


def measure_variance(
    runs: Sequence[Path | str],
    settings: VarianceSettings,
    *,
    out: Path | None = None,
    device: torch.device | str = "auto",
    corpus: str | Path | None = None,
    report: Reporter = silent,
    show: Callable[[int], AbstractContextManager[Advance]] = lambda total: nullcontext(ignore),
) -> list[VarianceRow]:
    """Measure runs at their checkpoints; ``out`` gets variance.json, variance.md and variance.png.

    ``corpus`` is where the corpus of the runs is now, if it was moved.
    """
    if not runs:
        raise ValueError("nothing to measure: name run folders that `duality train --out` wrote")
    chosen = [(Path(run).expanduser(), model) for run in runs for model in _models_of(run, settings, report, device)]
    for _, model in chosen:  # a name that does not fit is refused before anything is computed
        objectives_of(model, settings.names(), settings.alpha_range())
    if out is not None:
        output_folder(out)
    names, rows = run_names(folder for folder, _ in chosen), list[VarianceRow]()
    share = None if settings.limit_seconds is None else settings.limit_seconds / len(chosen)
    for folder, model in chosen:
        sequences = sequences_of_run(model, folder, split="train", corpus=corpus, report=report)
        objectives = objectives_of(model, settings.names(), settings.alpha_range())
        own = replace(settings, limit_seconds=share)
        own = replace(own, num_draws=affordable_draws(model, sequences, objectives, own, report))
        with show(own.num_draws * len(objectives)) as advance:
            found = compare_objectives(model, sequences, objectives, own, advance)
        rows += _rows_of(names[folder], model, objectives, found, own)
        if out is not None:
            write_atomically(out / "variance.json", json_text([row.to_json() for row in rows], indent=1))
            write_atomically(out / "variance.md", markdown(rows))
            plot_variance(rows, out / "variance.png")
    return rows


def _models_of(
    run: Path | str, settings: VarianceSettings, report: Reporter, device: torch.device | str
) -> list[Model]:
    """The run's model at every checkpoint that is asked for."""
    newest = load(run, report, device, settings.weights)
    if settings.steps == "last":
        return [newest]
    saved = checkpoint.steps_saved(Path(run).expanduser() / "checkpoints")
    return [load(run, report, device, settings.weights, step=step) for step in settings.kept_steps(saved)]


def _rows_of(
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
            window=_window_of(objectives[name]),
            infinite=_is_infinite(objectives[name]),
            batch=settings.batch or model.recipe.training.batch_size,
            length=model.length,
            seed=settings.seed,
            statistics=own,
            ratios={key: own.by_name[key].over(first.by_name[key]) for key in STATISTICS},
        )
        for name, own in found.items()
    ]


def _window_of(objective: Objective) -> tuple[float, float] | None:
    """The range of alpha that an objective is restricted to; None for all levels."""
    schedule = objective.schedule if isinstance(objective, (PairedBound, ContinuousTimeBound)) else None
    return (schedule.alpha_min, schedule.alpha_max) if isinstance(schedule, Dual) else None


def _is_infinite(objective: Objective) -> bool:
    """Whether the variance of a bound is infinite at its times.

    A change has probability 1 - alpha and weight alpha' / (1 - alpha), so that the second moment is the integral of
    alpha'^2 / (1 - alpha). With 1 - alpha = c t^power near t = 0 it is infinite for power <= 1.
    """
    if not isinstance(objective, ContinuousTimeBound) or _window_of(objective) is not None:
        return False
    return _first_power(objective.schedule) < 1.001


def _first_power(schedule: Schedule) -> float:
    """The power of t with which 1 - alpha leaves 0; infinite if it is not 0 at t = 0."""
    if float(schedule.alpha(torch.zeros((), dtype=torch.float64))) < 1:
        return math.inf
    near, far = (1 - schedule.alpha(torch.tensor([1e-5, 1e-4], dtype=torch.float64))).tolist()
    return math.log10(far / near)
