"""The variance of gradients as tables, sentences and a figure.

A row is one objective at one checkpoint of a run. The first table has the statistics with their 95 % intervals, the
second the ratios to the first objective of the same checkpoint, which was measured on the same draws. The figure has
bars, or with three or more checkpoints of a run lines against the training step, as the paper's Figure 2.

What must hold: nothing is printed without its interval and its number of draws; a statistic that needs more draws, or
that is infinite in theory, is named in a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from duality.evaluation.figures import canvas, save
from duality.evaluation.statistics import Estimate
from duality.evaluation.tables import cell, table
from duality.papers.duo.variance.gradients import ALL, LOSS, SNR, STATISTICS, TOP, Statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = (ALL, TOP, LOSS, SNR)


@dataclass(frozen=True)
class VarianceRow:
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
        """All numbers; what is not a finite number is null."""
        found = self.statistics
        settings = {name: value for name, value in self.__dict__.items() if name not in ("statistics", "ratios")}
        return {
            **settings,
            "draws": found.num_draws,
            "parameters": found.num_weights,
            "mean_loss": _numbers(found.mean_loss.estimate()),
            "statistics": {name: _numbers(estimate) for name, estimate in self.estimates.items()},
            "ratios": {name: None if ratio is None else _numbers(ratio) for name, ratio in self.ratios.items()},
            "largest_share": found.largest_share,
            "heavy_tailed": found.heavy_tailed,
        }


def _numbers(estimate: Estimate) -> dict[str, float | None]:
    """An estimate as JSON has it."""
    return {name: value if math.isfinite(value) else None for name, value in asdict(estimate).items()}


def _cell(estimate: Estimate | None) -> str:
    """A value with its interval."""
    if estimate is None or not math.isfinite(estimate.value):
        return "–"
    return cell((estimate.value, estimate.low, estimate.high), ".3g")


def _label(row: VarianceRow, rows: Sequence[VarianceRow]) -> str:
    """Which row this is: run and step as far as the rows differ in them, and the objective."""
    runs, checkpoints = {each.run for each in rows}, {(each.run, each.step) for each in rows}
    run = [row.run] if len(runs) > 1 else []
    step = [f"step {row.step}"] if len(checkpoints) > len(runs) else []
    return ", ".join([*run, *step, row.objective])


def markdown(rows: Sequence[VarianceRow]) -> str:
    """Both tables and the remarks."""
    values, ratios = [["objective", "mean loss", *STATISTICS, "largest draw"]], [["objective", *STATISTICS]]
    for row in rows:
        name, found = _label(row, rows), [row.statistics.mean_loss.estimate(), *row.estimates.values()]
        values.append([name, *map(_cell, found), f"{row.statistics.largest_share:.1%}"])
        ratios.append([name, *(_cell(row.ratios[each]) for each in STATISTICS)])
    parts = [
        "Variance of the gradient and of the loss of a minibatch, with 95 % intervals:",
        table(values).rstrip("\n"),
        "Ratios to the first objective at the same checkpoint, on the same draws:",
        table(ratios).rstrip("\n"),
        *_remarks(rows),
    ]
    return "\n\n".join(parts) + "\n"


def _remarks(rows: Sequence[VarianceRow]) -> list[str]:
    """Sentences that belong to the tables."""
    firsts = {(row.run, row.step): row for row in reversed(rows)}  # of each checkpoint
    lines = [
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
    return lines


def plot_variance(rows: Sequence[VarianceRow], target: Path) -> None:
    """Variance of all weights, of the top 100, of the loss, and signal to noise, with intervals, as a PNG."""
    steps = max(len({row.step for row in rows if row.run == run}) for run in {row.run for row in rows})
    figure, panels = canvas(len(_PANELS))
    for number, (axes, name) in enumerate(zip(panels, _PANELS, strict=True)):
        axes.set_title(f"{'variance, ' if name != SNR else ''}{name}")
        if steps >= 3:
            _draw_lines(axes, name, rows)
        else:
            _draw_bars(axes, name, rows, labelled=not number)
    save(figure, target, None if steps >= 3 else 1.6 + 0.32 * len(rows))


def _draw_bars(axis: Axes, name: str, rows: Sequence[VarianceRow], labelled: bool) -> None:
    """A bar for each row, from top to bottom; a colour for each checkpoint."""
    checkpoints = list(dict.fromkeys((row.run, row.step) for row in rows))
    found = [row.estimates[name] for row in rows]
    shades = [f"C{checkpoints.index((row.run, row.step))}" for row in rows]
    values = [each.value for each in found]
    spread = [[each.value - each.low for each in found], [each.high - each.value for each in found]]
    axis.barh(range(len(rows)), values, xerr=spread, color=shades, alpha=0.75, capsize=3)
    axis.set_yticks(range(len(rows)), [_label(row, rows) if labelled else "" for row in rows])
    axis.invert_yaxis()


def _draw_lines(axis: Axes, name: str, rows: Sequence[VarianceRow]) -> None:
    """A line with its band for each run and objective, against the training step."""
    several = len({row.run for row in rows}) > 1
    for run, objective in dict.fromkeys((row.run, row.objective) for row in rows):
        own = sorted((row for row in rows if (row.run, row.objective) == (run, objective)), key=lambda row: row.step)
        found, steps = [row.estimates[name] for row in own], [row.step for row in own]
        named = f"{run}, {objective}" if several else objective
        axis.plot(steps, [each.value for each in found], marker="o", ms=4, label=named)
        axis.fill_between(steps, [each.low for each in found], [each.high for each in found], alpha=0.15)
    if all(row.estimates[name].low > 0 for row in rows):
        axis.set_yscale("log")
    axis.set_xlabel("training step")
