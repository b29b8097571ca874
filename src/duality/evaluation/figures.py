"""The figures of the library in one style (``canvas``, ``style``, ``save``), and rows of a sweep as figures.

``draw`` shows Gen PPL and entropy against the number of steps, or against rounds of distillation. A line is a model
with the settings that differ among the rows; its band is the interval. Real text is a dashed line. Without a judge
there are the first column of a scorer, if there is one, and entropy. Of several temperatures these figures show the one
nearest to 1; ``plot_frontiers`` draws them all. matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from duality.evaluation.frontiers import Frontiers
from duality.evaluation.metrics import Values, bootstrap
from duality.evaluation.samples import Row, label_of
from duality.evaluation.tables import columns, group_rows, has_rounds, score_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HUES = ("Blues", "Oranges", "Greens", "Reds", "Purples", "Greys")
_DASHES = ("-", "--", "-.", ":")


def style(number: int, place: int, count: int) -> tuple[tuple[float, float, float, float], str]:
    """The colour and dashes of line ``place`` of ``count`` (light to dark) in column ``number``, for matplotlib."""
    from matplotlib import colormaps

    depth = 0.7 if count == 1 else 0.35 + 0.6 * place / (count - 1)
    hue = colormaps[_HUES[number % len(_HUES)]]
    return hue(depth), _DASHES[number // len(_HUES) % len(_DASHES)]


def canvas(count: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with this number of axes beside each other."""
    from matplotlib.figure import Figure  # without pyplot: the backend of a user's notebook stays as it is

    figure = Figure(figsize=(5.5 * count + 2 * (count == 1), 4.8), layout="constrained")
    panels = list(figure.subplots(1, count, squeeze=False)[0])
    for axes in panels:
        axes.grid(alpha=0.3, which="both")
    return figure, panels


def _label_of_measure(name: str, rows: Sequence[Row]) -> str:
    """A measure in words, as an axis shows it."""
    judges = ", ".join(sorted({row.judge for row in rows if row.judge is not None}))
    words = {"nats": "nats per token under the judge", "entropy": "entropy of a sample's tokens (nats)"}
    return f"Gen PPL under {judges}" if name == "gen_ppl" else words.get(name, name)


def use_log_scale(axes: Axes) -> None:
    """Show the vertical axis of a perplexity as logarithms, with plain numbers beside it."""
    from matplotlib import ticker

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ticker.LogFormatter())
    axes.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(2, 0.5)))


def save(figure: Figure, target: Path, height: float | None = None) -> None:
    """Put one legend for all axes below them, and write the file; without a ``height`` the legend decides it."""
    named = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    wide = min(len(figure.axes) + 1, max(1, len(named)))
    figure.set_figheight(height or 4.2 + 0.2 * math.ceil(len(named) / wide))
    if named:
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=wide, fontsize=8)
    figure.savefig(target, dpi=130)


def draw(rows: Sequence[Row], steps: Path, rounds: Path | None = None) -> None:
    """The figure against steps and, if it is requested and there are rounds, the one against rounds."""
    found = {row.temperature for row in rows if not row.real}
    nearest = min(found, key=lambda each: (abs(each - 1), each), default=1.0)
    shown = [row for row in rows if row.real or row.temperature == nearest]
    _plot_rows(shown, steps)
    if rounds is not None and has_rounds(shown):
        _plot_rows(shown, rounds, over_rounds=True)


def _plot_rows(rows: Sequence[Row], target: Path, over_rounds: bool = False) -> None:
    """Quality and entropy as a PNG, against steps with a line for each round, or against rounds with one for each step.

    Later rounds, or fewer steps, are darker.
    """

    def across(row: Row) -> int:
        return (row.round or 0) if over_rounds else row.steps

    quality = ["gen_ppl"] if any(row.judge is not None for row in rows) else score_columns(rows)[:1]
    figure, panels = canvas(len(quality) + 1)
    temperatures = {row.temperature for row in rows if not row.real}
    if temperatures != {1.0} and len(temperatures) == 1:
        figure.suptitle(f"temperature {temperatures.pop():g}", fontsize=9)
    for axes, measure in zip(panels, [*quality, "entropy"], strict=True):
        ticks = sorted({across(row) for row in rows if not row.real})
        axes.set(xlabel="round of distillation" if over_rounds else "steps", ylabel=_label_of_measure(measure, rows))
        if not over_rounds:
            axes.set_xscale("log", base=2)
            axes.set_xticks([], minor=True)
        axes.set_xticks(ticks, [str(each) for each in ticks])
        if measure == "gen_ppl":
            use_log_scale(axes)
        for number, (name, column) in enumerate(columns(rows).items()):
            lines = group_rows(column, lambda row: -row.steps if over_rounds else row.round or 0)
            for place, same in enumerate(lines):
                line, (colour, dashes) = sorted(same, key=across), style(number, place, len(lines))
                label = f"{name}, {line[0].steps} steps" if over_rounds else label_of(name, line[0].round)
                x = [across(row) for row in line]
                # what was not measured is NaN and leaves a gap
                value, low, high = np.array([row.measure(measure) for row in line], dtype=float).T
                axes.plot(x, value, marker="o", ms=4, lw=1.6, label=label, color=colour, ls=dashes)
                axes.fill_between(x, low, high, color=colour, alpha=0.13, lw=0)
                if len(line) == 1:  # a band needs two points
                    axes.vlines(x, low, high, color=colour, alpha=0.5)
        for row in rows:
            if row.real and (text := row.measure(measure)[0]) is not None:
                axes.axhline(text, color="grey", ls="--", lw=1.2, label=row.label)
    save(figure, target)


def plot_frontiers(found: Frontiers, target: Path) -> None:
    """Quality against diversity, as a PNG: a hue for each model, later settings darker, points with temperatures."""
    figure, (axes,) = canvas()
    axes.set(xlabel=_label_of_measure(found.diversity, found.rows), ylabel=_label_of_measure(found.quality, found.rows))
    if found.quality == "gen_ppl":
        use_log_scale(axes)
    models = [row.model for row in found.settings]
    hues = list(dict.fromkeys(models))
    for place, (curve, model) in enumerate(zip(found.curves, models, strict=True)):
        colour, dashes = style(hues.index(model), models[:place].count(model), models.count(model))
        points = [
            (*_with_reach(point.diversity, found.diversity), *_with_reach(point.quality, found.quality), temperature)
            for temperature, point in curve.known.items()
        ]
        if not points:
            continue
        x, left, right, y, down, up, temperatures = zip(*sorted(points, key=lambda point: point[0]))
        axes.errorbar(x, y, (down, up), (left, right), elinewidth=0.6, color=colour, ls=dashes)
        axes.plot(x, y, marker="o", ms=4, lw=1.6, label=curve.label, color=colour, ls=dashes)
        for *end, temperature in zip(x, y, temperatures):
            axes.annotate(f"{temperature:g}", tuple(end), (3, 3), textcoords="offset points", fontsize=6.5)
    for row in found.rows:
        at, value = row.measure(found.diversity)[0], row.measure(found.quality)[0]
        if row.real and at is not None and value is not None:
            axes.plot(at, value, marker="*", ms=11, ls="", color="grey", label=row.label)
    save(figure, target)


def _with_reach(values: Values, name: str) -> tuple[float, float, float]:
    """A figure as it is shown, and how far its interval reaches below and above it; not at all if it is not known."""
    found = bootstrap(values, torch.exp if name == "gen_ppl" else lambda mean: mean)
    if not math.isfinite(found.stderr):
        return found.value, 0.0, 0.0
    return found.value, max(0.0, found.value - found.low), max(0.0, found.high - found.value)
