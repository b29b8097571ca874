"""The variance of a run's gradients: what `duality variance` measures.

    rows = measure_variance([run], VarianceSettings(objectives=("plain", "tau=0.001")), out=folder)
    found = compare_objectives(model, sequences, {"mine": my_objective}, VarianceSettings())

A draw is a minibatch of the run's own training text, with fresh sequences, times and noise, exactly as a training step
has them (``training.loop.gradients``); its number and the seed decide everything. Runs are measured at their
checkpoints, each checkpoint with all its objectives on the same draws, so that their ratios are paired. A row is one
objective at one checkpoint (``tables``).

What must hold: a seed gives the same numbers; dividing a minibatch into micro-batches changes rounding only; an
objective that does not fit a run is refused before anything is computed; the runs are never changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from duality.data.loader import Loader
from duality.data.packing import Sequences
from duality.diffusion.schedules import Dual
from duality.evaluation.samples import run_names
from duality.files.atomic import json_text, output_folder, write_atomically
from duality.files.progress import Advance, Reporter, silent, unseen, working
from duality.models.model import Model, load, network
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.papers.duo.variance.gradients import STATISTICS, Draw, Statistics, collect
from duality.papers.duo.variance.objectives import PairedBound, objectives_of
from duality.papers.duo.variance.settings import VarianceSettings
from duality.papers.duo.variance.tables import VarianceRow, markdown, plot_variance
from duality.protocols import Objective, Phase, Vocabulary
from duality.runs.corpus import sequences_of_run
from duality.training import checkpoint
from duality.training.loop import gradients
from duality.training.settings import of_all_weights
from duality.training.state import TrainState, load_weights


def _draws_of(model: Model, sequences: Sequences, objective: Objective, settings: VarianceSettings) -> tuple[Draw, int]:
    """The draws of an objective as a function of their number, and the number of weights, which all have a gradient."""
    training = replace(
        of_all_weights(model.recipe.training),
        seed=settings.seed,
        batch_size=settings.batch or model.recipe.training.batch_size,
        micro_batch=settings.micro_batch,
        compile=False,
    )
    copy = network(model.recipe, Vocabulary(model.tokenizer.vocab_size, len(model.label_names)), model.device)
    load_weights(copy, dict(model.denoiser.named_parameters()))
    state = TrainState.fresh(copy, training)
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
    advance: Advance = unseen,
) -> dict[str, Statistics]:
    """The statistics of each objective, all on the same draws; objectives may be any, under names of your own."""
    found = {}
    for name, objective in objectives.items():
        draw, num_weights = _draws_of(model, sequences, objective, settings)
        found[name] = collect(draw, num_weights, settings.num_draws, settings.groups, model.device, advance)
    return found


def _affordable_draws(
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
        draw, _ = _draws_of(model, sequences, objective, settings)
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


def measure_variance(
    runs: Sequence[Path | str],
    settings: VarianceSettings,
    *,
    out: Path | None = None,
    device: torch.device | str = "auto",
    corpus: str | Path | None = None,
    report: Reporter = silent,
) -> list[VarianceRow]:
    """Measure runs at their checkpoints; ``out`` gets variance.json, variance.md and variance.png.

    ``corpus`` is where the corpus of the runs is now, if it was moved.
    """
    if not runs:
        raise ValueError("nothing to measure: name run folders that `duality train --out` wrote")
    chosen = []
    for run in map(Path, runs):
        models, folder = [load(run, report, device, settings.weights)], run.expanduser()
        if settings.steps != "last":
            steps = settings.kept_steps(checkpoint.steps_saved(folder / "checkpoints"))
            models = [load(run, report, device, settings.weights, step=step) for step in steps]
        chosen += [(folder, model) for model in models]
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
        own = replace(own, num_draws=_affordable_draws(model, sequences, objectives, own, report))
        with working(report, "gradients", own.num_draws * len(objectives)) as advance:
            found = compare_objectives(model, sequences, objectives, own, advance)
        first = next(iter(found.values()))
        rows += [
            VarianceRow(
                run=names[folder],
                step=model.step,
                weights=own.weights,
                objective=name,
                about=repr(objectives[name]),
                window=_window_of(objectives[name]),
                infinite=_is_infinite(objectives[name]),
                batch=own.batch or model.recipe.training.batch_size,
                length=model.length,
                seed=own.seed,
                statistics=measured,
                ratios={key: measured.by_name[key].over(first.by_name[key]) for key in STATISTICS},
            )
            for name, measured in found.items()
        ]
        if out is not None:
            write_atomically(out / "variance.json", json_text([row.to_json() for row in rows], indent=1))
            write_atomically(out / "variance.md", markdown(rows))
            plot_variance(rows, out / "variance.png")
    return rows


def _window_of(objective: Objective) -> tuple[float, float] | None:
    """The range of alpha that an objective is restricted to; None for all levels."""
    schedule = objective.schedule if isinstance(objective, (PairedBound, ContinuousTimeBound)) else None
    return (schedule.alpha_min, schedule.alpha_max) if isinstance(schedule, Dual) else None


def _is_infinite(objective: Objective) -> bool:
    """Whether the variance of a bound is infinite at its times.

    A change has probability 1 - alpha and weight alpha' / (1 - alpha), so that the second moment is the integral of
    alpha'^2 / (1 - alpha). With 1 - alpha = c t^power near t = 0 it is infinite for power <= 1, and finite if alpha is
    not 1 at t = 0.
    """
    if not isinstance(objective, ContinuousTimeBound) or _window_of(objective) is not None:
        return False
    first, near, far = objective.schedule.alpha(torch.tensor([0.0, 1e-5, 1e-4], dtype=torch.float64)).tolist()
    return first >= 1 and math.log10((1 - far) / (1 - near)) < 1.001
