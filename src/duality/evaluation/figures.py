"""Rows as figures: Gen PPL and entropy against the number of steps, or against rounds of distillation.

A line is a model with the settings that differ among the rows; its band is the interval. Real text is a dashed line.
Without a judge there are the first column of a scorer, if there is one, and entropy. Of several temperatures these
figures show the one nearest to 1; ``frontier_report`` draws them all. matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from duality.evaluation.sweep.samples import Row
from duality.evaluation.tables import (
    columns,
    grouped,
    has_rounds,
    round_of,
    score_columns,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HUES = ("Blues", "Oranges", "Greens", "Reds", "Purples", "Greys")
_DASHES = ("-", "--", "-.", ":")

Interval = tuple[float | None, float | None, float | None]


class Style(TypedDict):
    """Colour and dashes of a line, by the names that matplotlib has for them."""

    color: tuple[float, float, float, float]
    ls: str


def likely(row: Row) -> Interval:
    """Gen PPL with its interval."""
    return row.gen_ppl, row.low, row.high


def varied(row: Row) -> Interval:
    """Entropy with its interval."""
    return row.entropy, row.entropy_low, row.entropy_high


def scored(row: Row, name: str) -> Interval:
    """A column of a scorer with its interval."""
    score = row.scores.get(name)
    return (None, None, None) if score is None else (score.value, score.low, score.high)


@dataclass(frozen=True)
class Panel:
    """Axes, and which measure of a row they show: its value, low and high."""

    axes: Axes
    measure: Callable[[Row], Interval]

    def draw(self, rows: Sequence[Row], across: Sequence[int], label: str, look: Style) -> None:
        """A line with its band; what was not measured leaves a gap."""
        missing = float("nan")
        found = [[missing if part is None else part for part in self.measure(row)] for row in rows]
        value, low, high = (list(parts) for parts in zip(*found))
        self.axes.plot(across, value, marker="o", ms=4, lw=1.6, label=label, **look)
        self.axes.fill_between(across, low, high, color=look["color"], alpha=0.13, lw=0)
        if len(rows) == 1:  # a band needs two points
            self.axes.vlines(across, low, high, color=look["color"], alpha=0.5)


def draw(rows: Sequence[Row], steps: Path, rounds: Path | None = None) -> None:
    """The figure against steps and, if it is requested and there are rounds, the one against rounds."""
    shown = at_one_temperature(rows)
    plot_steps(shown, steps)
    if rounds is not None and has_rounds(shown):
        plot_rounds(shown, rounds)


def at_one_temperature(rows: Sequence[Row]) -> list[Row]:
    """The rows of the temperature nearest to 1, and real text."""
    found = {row.temperature for row in rows if not row.real}
    nearest = min(found, key=lambda each: (abs(each - 1), each), default=1.0)
    return [row for row in rows if row.real or row.temperature == nearest]


def plot_steps(rows: Sequence[Row], target: Path) -> None:
    """Gen PPL and entropy against steps, as a PNG: a line for each model and setting, later rounds in darker shades."""
    figure, panels = canvas(rows, "steps")
    for number, (name, column) in enumerate(columns(rows).items()):
        rounds = grouped(column, round_of)
        for place, (_, found) in enumerate(rounds):
            line = sorted(found, key=lambda row: row.steps)
            label = name if line[0].round is None else f"{name}, round {line[0].round}"
            for panel in panels:
                panel.draw(line, [row.steps for row in line], label, style(number, place, len(rounds)))
    steps = sorted({row.steps for row in rows if not row.real})
    for panel in panels:
        panel.axes.set_xscale("log", base=2)
        panel.axes.set_xticks(steps, [str(step) for step in steps])
        panel.axes.set_xticks([], minor=True)
    finish(figure, panels, rows, target)


def plot_rounds(rows: Sequence[Row], target: Path) -> None:
    """Gen PPL and entropy against rounds of distillation, as a PNG; a line for each number of steps (few: darker)."""
    if not has_rounds(rows):
        raise ValueError("no row has a round: there is nothing to draw; measure a distilled run, or use plot_steps")
    figure, panels = canvas(rows, "round of distillation")
    for number, (name, column) in enumerate(columns(rows).items()):
        lines = grouped(column, lambda row: -row.steps)
        for place, (_, found) in enumerate(lines):
            line = sorted(found, key=round_of)
            label = f"{name}, {line[0].steps} steps"
            for panel in panels:
                panel.draw(line, [round_of(row) for row in line], label, style(number, place, len(lines)))
    for panel in panels:
        panel.axes.set_xticks(sorted({round_of(row) for row in rows if not row.real}))
    finish(figure, panels, rows, target)


def canvas(rows: Sequence[Row], across: str) -> tuple[Figure, list[Panel]]:
    """A figure with a panel for entropy and, before it, one for Gen PPL or for the first column of a scorer."""
    from matplotlib import ticker
    from matplotlib.figure import Figure  # without pyplot: the backend of a user's notebook stays as it is

    judges = sorted({row.judge for row in rows if row.judge is not None})
    scores = score_columns(rows)
    width = 2 if judges or scores else 1
    figure = Figure(figsize=(5.5 * width, 4.8), layout="constrained")
    places = figure.subplots(1, width, squeeze=False)
    panels = [Panel(places[0][-1], varied)]
    panels[0].axes.set(ylabel="entropy of a sample's tokens (nats)")
    if judges:
        panels.insert(0, Panel(places[0][0], likely))
        axes = panels[0].axes
        axes.set(yscale="log", ylabel=f"Gen PPL under {', '.join(judges)}")
        axes.yaxis.set_major_formatter(ticker.LogFormatter())
        axes.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(2, 0.5)))
    elif scores:
        panels.insert(0, Panel(places[0][0], partial(scored, name=scores[0])))
        panels[0].axes.set(ylabel=scores[0])
    temperatures = {row.temperature for row in rows if not row.real}
    if temperatures != {1.0} and len(temperatures) == 1:
        figure.suptitle(f"temperature {temperatures.pop():g}", fontsize=9)
    for panel in panels:
        panel.axes.set(xlabel=across)
        panel.axes.grid(alpha=0.3, which="both")
    return figure, panels


def style(number: int, place: int, count: int) -> Style:
    """The style of line ``place`` of ``count`` (light to dark) in column ``number``."""
    from matplotlib import colormaps

    depth = 0.7 if count == 1 else 0.35 + 0.6 * place / (count - 1)
    hue = colormaps[_HUES[number % len(_HUES)]]
    return {"color": hue(depth), "ls": _DASHES[number // len(_HUES) % len(_DASHES)]}


def finish(figure: Figure, panels: Sequence[Panel], rows: Sequence[Row], target: Path) -> None:
    """Add real text and the legend, and write the file."""
    for panel in panels:
        for row in [row for row in rows if row.real]:
            value, _, _ = panel.measure(row)
            if value is not None:
                panel.axes.axhline(value, color="grey", ls="--", lw=1.2, label=row.label)
    named = dict(zip(*reversed(panels[-1].axes.get_legend_handles_labels())))
    figure.set_figheight(4.2 + 0.2 * math.ceil(len(named) / 3))
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=min(3, len(named)), fontsize=8)
    figure.savefig(target, dpi=130)
