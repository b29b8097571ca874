"""Figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duality.evaluation.cases import Row
from duality.evaluation.tables import (
    columns,
    grouped,
    has_rounds,
    round_of,
)

_HUES = ("Blues", "Oranges", "Greens", "Reds", "Purples", "Greys")


_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Panel:
    """Axes and the fields of a row that they show: a figure and its interval."""

    axes: Any
    value: str
    low: str
    high: str

    def draw(self, rows: Sequence[Row], across: Sequence[int], **style: Any) -> None:
        """A line with its band; what was not measured leaves a gap."""
        nothing = float("nan")
        value, low, high = (
            [nothing if getattr(row, name) is None else getattr(row, name) for row in rows]
            for name in (self.value, self.low, self.high)
        )
        self.axes.plot(across, value, marker="o", ms=4, lw=1.6, **style)
        self.axes.fill_between(across, low, high, color=style["color"], alpha=0.13, lw=0)
        if len(rows) == 1:  # a band needs two
            self.axes.vlines(across, low, high, color=style["color"], alpha=0.5)


def plot_quality(rows: Sequence[Row], target: Path) -> None:
    """Gen PPL and entropy against steps, as a PNG: a line for each model and setting, later rounds in darker shades."""
    figure, panels = canvas(rows, "steps")
    for number, (name, column) in enumerate(columns(rows).items()):
        rounds = grouped(column, round_of)
        for place, (_, found) in enumerate(rounds):
            line = sorted(found, key=lambda row: row.steps)
            label = name if line[0].round is None else f"{name}, round {line[0].round}"
            for panel in panels:
                panel.draw(line, [row.steps for row in line], label=label, **style(number, place, len(rounds)))
    steps = sorted({row.steps for row in rows if not row.real})
    for panel in panels:
        panel.axes.set_xscale("log", base=2)
        panel.axes.set_xticks(steps, [str(step) for step in steps])
        panel.axes.set_xticks([], minor=True)
    finish(figure, panels, rows, target)


def plot_rounds(rows: Sequence[Row], target: Path) -> None:
    """Gen PPL and entropy against rounds of distillation, as a PNG: a line for each count of steps, more is lighter."""
    if not has_rounds(rows):
        raise ValueError("no row has a round: there is nothing to draw; measure a distilled run, or use plot_quality")
    figure, panels = canvas(rows, "round of distillation")
    for number, (name, column) in enumerate(columns(rows).items()):
        lines = grouped(column, lambda row: -row.steps)
        for place, (_, found) in enumerate(lines):
            line = sorted(found, key=round_of)
            label = f"{name}, {line[0].steps} steps"
            for panel in panels:
                panel.draw(line, [round_of(row) for row in line], label=label, **style(number, place, len(lines)))
    for panel in panels:
        panel.axes.set_xticks(sorted({round_of(row) for row in rows if not row.real}))
    finish(figure, panels, rows, target)


def canvas(rows: Sequence[Row], across: str) -> tuple[Any, list[Panel]]:
    """A figure with a panel for entropy and, if a judge has read the samples, one for Gen PPL before it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    judges = sorted({row.judge for row in rows if row.judge is not None})
    width = 2 if judges else 1
    figure, places = pyplot.subplots(1, width, figsize=(5.5 * width, 4.8), layout="constrained", squeeze=False)
    panels = [Panel(places[0][-1], "entropy", "entropy_low", "entropy_high")]
    panels[0].axes.set(ylabel="entropy of a sample's tokens (nats)")
    if judges:
        panels.insert(0, Panel(places[0][0], "gen_ppl", "low", "high"))
        axes = panels[0].axes
        axes.set(yscale="log", ylabel=f"Gen PPL under {', '.join(judges)}")
        axes.yaxis.set_major_formatter(ticker.LogFormatter())
        axes.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(2, 0.5)))
    for panel in panels:
        panel.axes.set(xlabel=across)
        panel.axes.grid(alpha=0.3, which="both")
    return figure, panels


def style(number: int, place: int, count: int) -> dict[str, Any]:
    """Colour and dashes of line ``place`` of ``count`` (light to dark) in column ``number``."""
    from matplotlib import colormaps

    depth = 0.7 if count == 1 else 0.35 + 0.6 * place / (count - 1)
    hue = colormaps[_HUES[number % len(_HUES)]]
    return {"color": hue(depth), "ls": _DASHES[number // len(_HUES) % len(_DASHES)]}


def finish(figure: Any, panels: Sequence[Panel], rows: Sequence[Row], target: Path) -> None:
    """Add real text and the legend, and write the file."""
    from matplotlib import pyplot

    for panel in panels:
        for row in [row for row in rows if row.real and getattr(row, panel.value) is not None]:
            panel.axes.axhline(getattr(row, panel.value), color="grey", ls="--", lw=1.2, label=row.label)
    named = dict(zip(*reversed(panels[-1].axes.get_legend_handles_labels())))
    figure.set_figheight(4.2 + 0.2 * math.ceil(len(named) / 3))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(3, len(named)), fontsize=8)
    figure.savefig(target, dpi=130)
    pyplot.close(figure)
