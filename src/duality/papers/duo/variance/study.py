"""The variance of a run's gradients: what `duality variance` measures, its tables and its figure.

    rows = measure_variance([run], VarianceSettings(objectives=("plain", "tau=0.001")), out=folder)
    found = compare_objectives(model, sequences, {"mine": my_objective}, VarianceSettings())

A draw is a minibatch of the run's own training text, with fresh sequences, times and noise, exactly as a training step
has them (``training.loop.gradients``); its number and the seed decide everything. Runs are measured at their
checkpoints, each checkpoint with all its objectives on the same draws, so that their ratios are paired.

A row is one objective at one checkpoint of a run. The first table has the statistics with their 95 % intervals, the
second the ratios to the first objective of the same checkpoint, which was measured on the same draws. The figure has
bars, or with three or more checkpoints of a run lines against the training step, as the paper's Figure 2.

What must hold: a seed gives the same numbers; dividing a minibatch into micro-batches changes rounding only; an
objective that does not fit a run is refused before anything is computed; the runs are never changed; nothing is printed
without its interval and its number of draws; a statistic that needs more draws, or that is infinite in theory, is named
in a sentence.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from duality.data.loader import Loader
from duality.data.packing import Sequences
from duality.diffusion.schedules import Dual
from duality.evaluation.figures import canvas, save
from duality.evaluation.metrics import Estimate
from duality.evaluation.samples import run_names
from duality.evaluation.tables import cell, table
from duality.files.atomic import json_text, output_folder, write_atomically
from duality.files.progress import Advance, Reporter, silent, unseen, working
from duality.models.model import Model, load, network
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.papers.duo.variance.gradients import ALL, LOSS, SNR, STATISTICS, TOP, Draw, Statistics
from duality.papers.duo.variance.objectives import PairedBound, objectives_of
from duality.papers.duo.variance.settings import VarianceSettings
from duality.protocols import Objective, Phase, Vocabulary
from duality.runs.corpus import sequences_of_run
from duality.training import checkpoint
from duality.training.loop import TrainState, gradients, load_weights

_PANELS = (ALL, TOP, LOSS, SNR)


@dataclass(frozen=True)
class _VarianceRow:
    """The statistics of an objective at a checkpoint; ``ratios`` are to the first objective there.

    ``about`` prints the objective. ``window`` is its range of alpha, None for all levels. ``infinite`` says that its
    variance has no finite value in theory.
    """

    run: str
    step: int
    weights: str
    objective: str
    about: str
    window: tuple[float, float] | None
    infinite: bool
    batch: int
    length: int
    seed: int
    statistics: Statistics
    ratios: dict[str, Estimate | None]

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Every statistic with its interval."""
        return {name: repeated.estimate() for name, repeated in self.statistics.by_name.items()}

    def to_json(self) -> dict[str, object]:
        """All numbers; JSON has null for what is not a finite number (``json_text``)."""
        found = self.statistics
        return {
            **{name: value for name, value in vars(self).items() if name not in ("statistics", "ratios")},
            "draws": found.num_draws,
            "parameters": found.num_weights,
            "mean_loss": asdict(found.mean_loss.estimate()),
            "statistics": {name: asdict(estimate) for name, estimate in self.estimates.items()},
            "ratios": {name: ratio and asdict(ratio) for name, ratio in self.ratios.items()},
            "largest_share": found.largest_share,
            "heavy_tailed": found.heavy_tailed,
        }


# --- measuring


def _draws_of(model: Model, sequences: Sequences, objective: Objective, settings: VarianceSettings) -> Draw:
    """The draws of an objective as a function of their number; all weights have a gradient."""
    training = replace(
        model.recipe.training.of_all_weights(),
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
        loss, *_ = gradients(state, loader, phase, training)
        found = [torch.zeros_like(value) if value.grad is None else value.grad for value in parameters]
        flat = torch.cat([each.flatten() for each in found])
        if not math.isfinite(float(loss)) or not bool(flat.isfinite().all()):
            raise ValueError(
                f"draw {number} has the loss {float(loss)} or a gradient that is not finite: the weights of step "
                f"{model.step} are damaged or diverged; measure an earlier checkpoint"
            )
        return flat, float(loss)

    return draw


def compare_objectives(
    model: Model,
    sequences: Sequences,
    objectives: Mapping[str, Objective],
    settings: VarianceSettings,
    advance: Advance = unseen,
) -> dict[str, Statistics]:
    """The statistics of each objective, all on the same draws; objectives may be any, under names of your own."""
    num_weights, found = sum(value.numel() for value in model.denoiser.parameters()), {}
    for name, objective in objectives.items():
        draw = _draws_of(model, sequences, objective, settings)
        found[name] = Statistics.of_draws(draw, num_weights, settings, model.device, advance)
    return found


def _affordable_draws(draws: Iterable[Draw], settings: VarianceSettings, report: Reporter) -> int:
    """The number of draws: what is wanted, or less if the limit is shorter. One draw of each objective is timed."""
    if settings.limit_seconds is None:
        return settings.num_draws
    seconds = []
    for draw in draws:
        draw(0)  # the first one also allocates
        started = time.monotonic()
        draw(1)
        seconds.append(time.monotonic() - started)
    each_draw = sum(seconds)
    rounds = int(settings.limit_seconds / (each_draw * settings.groups))
    if rounds < 2:
        raise ValueError(
            f"limit-seconds leaves {settings.limit_seconds:.0f} s for a checkpoint, and the fewest draws "
            f"({2 * settings.groups} of {len(seconds)} objectives) take {2 * settings.groups * each_draw:.0f} s: "
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
) -> list[_VarianceRow]:
    """Measure runs at their checkpoints; ``out`` gets variance.json, variance.md and variance.png.

    ``corpus`` is where the corpus of the runs is now, if it was moved.
    """
    if not runs:
        raise ValueError("nothing to measure: name run folders that `duality train --out` wrote")
    chosen = []
    for run in map(Path, runs):
        folder = run.expanduser()
        for step in settings.kept_steps(checkpoint.steps_saved(folder / "checkpoints")) or (None,):
            model = load(run, report, device, settings.weights, step=step)
            # a name that does not fit is refused before anything is computed
            chosen.append((folder, model, objectives_of(model, settings.names(), settings.alpha_range())))
    if out is not None:
        output_folder(out)
    names, rows = run_names(folder for folder, _, _ in chosen), list[_VarianceRow]()
    share = None if settings.limit_seconds is None else settings.limit_seconds / len(chosen)
    for folder, model, objectives in chosen:
        sequences = sequences_of_run(model, folder, split="train", corpus=corpus, report=report)
        own = replace(settings, limit_seconds=share)
        timed = (_draws_of(model, sequences, objective, own) for objective in objectives.values())
        own = replace(own, num_draws=_affordable_draws(timed, own, report))
        with working(report, "gradients", own.num_draws * len(objectives)) as advance:
            found = compare_objectives(model, sequences, objectives, own, advance)
        first = next(iter(found.values()))
        rows += [
            _VarianceRow(
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
            write_atomically(out / "variance.md", _markdown(rows))
            _plot_variance(rows, out / "variance.png")
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


# --- tables and the figure


def _cell(estimate: Estimate | None) -> str:
    """A value with its interval."""
    if estimate is None or not math.isfinite(estimate.value):
        return "–"
    return cell((estimate.value, estimate.low, estimate.high), ".3g")


def _label(row: _VarianceRow, rows: Sequence[_VarianceRow]) -> str:
    """Which row this is: run and step as far as the rows differ in them, and the objective."""
    runs, checkpoints = {each.run for each in rows}, {(each.run, each.step) for each in rows}
    run = [row.run] if len(runs) > 1 else []
    step = [f"step {row.step}"] if len(checkpoints) > len(runs) else []
    return ", ".join([*run, *step, row.objective])


def _markdown(rows: Sequence[_VarianceRow]) -> str:
    """Both tables, and the sentences that belong to them."""
    values, ratios = [["objective", "mean loss", *STATISTICS, "largest draw"]], [["objective", *STATISTICS]]
    for row in rows:
        name, found = _label(row, rows), [row.statistics.mean_loss.estimate(), *row.estimates.values()]
        values.append([name, *map(_cell, found), f"{row.statistics.largest_share:.1%}"])
        ratios.append([name, *map(_cell, row.ratios.values())])
    lines = [
        "Variance of the gradient and of the loss of a minibatch, with 95 % intervals:",
        table(values).rstrip("\n"),
        "Ratios to the first objective at the same checkpoint, on the same draws:",
        table(ratios).rstrip("\n"),
    ]
    firsts = {(row.run, row.step): row for row in reversed(rows)}  # of each checkpoint
    lines += [
        f"{row.run}: {row.weights} weights of step {row.step}, {row.statistics.num_weights:,} of them; "
        f"{row.statistics.num_draws} draws of a minibatch of {row.batch} sequences of {row.length} tokens, seed "
        f"{row.seed}; the loss is the mean over tokens."
        for row in reversed(firsts.values())
    ]
    lines += [
        "Intervals: delete-a-group jackknife, on a logarithmic scale for variances. A dash: one of the two numbers may "
        'be 0. "top 100, split" chooses the weights on one half of the draws and measures them on the other, because '
        "the largest of many estimates are too large by chance.",
        "Signal: |E g|², without the part that is noise. At weights where the whole bound has hardly a gradient left, "
        "the signal of an objective with another minimum is its bias.",
    ]
    ranges = sorted({row.window for row in rows if row.window is not None})
    for low, high in ranges:
        names = ", ".join(dict.fromkeys(row.objective for row in rows if row.window == (low, high)))
        lines.append(
            f"{names}: only the levels alpha in [{low:g}, {high:g}], hence an estimate of another quantity than the "
            "whole bound; compare the ratio of signal to noise too."
        )
    infinite = ", ".join(dict.fromkeys(row.objective for row in rows if row.infinite))
    if infinite:
        lines.append(
            f"{infinite}: at these times the variance is infinite in theory (a change has probability t and weight "
            "1/t). The number is that of these draws, and grows slowly with more of them."
        )
    lines += [
        f"Warning: {_label(row, rows)}: one draw makes {row.statistics.largest_share:.0%} of the variance; the "
        "intervals are too short, and more draws are needed."
        for row in rows
        if row.statistics.heavy_tailed
    ]
    return "\n\n".join(lines) + "\n"


def _plot_variance(rows: Sequence[_VarianceRow], target: Path) -> None:
    """Variance of all weights, of the top 100, of the loss, and signal to noise, with intervals, as a PNG.

    Bars have a row each, from top to bottom, and a colour for each checkpoint; a line with its band is a run and an
    objective.
    """
    checkpoints = list(dict.fromkeys((row.run, row.step) for row in rows))
    steps = Counter(run for run, _ in checkpoints)
    over_steps = max(steps.values()) >= 3
    figure, panels = canvas(len(_PANELS))
    for axes, name in zip(panels, _PANELS, strict=True):
        axes.set_title(f"{'variance, ' if name != SNR else ''}{name}")
        found = [row.estimates[name] for row in rows]
        if not over_steps:
            spread = [[each.value - each.low for each in found], [each.high - each.value for each in found]]
            shades = [f"C{checkpoints.index((row.run, row.step))}" for row in rows]
            values = [each.value for each in found]
            axes.barh(range(len(rows)), values, xerr=spread, color=shades, alpha=0.75, capsize=3)
            axes.set_yticks(range(len(rows)), [_label(row, rows) if axes is panels[0] else "" for row in rows])
            axes.invert_yaxis()
            continue
        for run, objective in dict.fromkeys((row.run, row.objective) for row in rows):
            own = [(row.step, each) for row, each in zip(rows, found) if (row.run, row.objective) == (run, objective)]
            own.sort(key=lambda point: point[0])
            across, label = [step for step, _ in own], f"{run}, {objective}" if len(steps) > 1 else objective
            axes.plot(across, [each.value for _, each in own], marker="o", ms=4, label=label)
            axes.fill_between(across, [each.low for _, each in own], [each.high for _, each in own], alpha=0.15)
        if all(each.low > 0 for each in found):
            axes.set_yscale("log")
        axes.set_xlabel("training step")
    save(figure, target, None if over_steps else 1.6 + 0.32 * len(rows))
