"""Figures and tables of the quality of samples: Gen PPL beside entropy, against steps and against rounds.

A line of a figure, and a pair of columns of the table, is a model with the settings in which the rows differ; settings
that all share are named nowhere but in ``details``. The judge is such a setting: two judges never share a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duality.evaluate.quality import Row

_SETTINGS = ("sampler", "eta", "tail", "grid", "top_p", "temperature", "length", "num", "seed", "judge")
_WORDS = {
    "sampler": "{} sampler",
    "tail": "{} tail",
    "grid": "{} grid",
    "top_p": "top-p {}",
    "length": "{} tokens",
    "num": "{} samples",
    "judge": "read by {}",
}
_HUES = ("Blues", "Oranges", "Greens", "Reds", "Purples", "Greys")
_DASHES = ("-", "--", "-.", ":")


def model_of(row: Row) -> str:
    """The label without its round."""
    return row.label if row.round is None else row.label.removesuffix(f", round {row.round}")


def columns(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of samples by model and by the settings that differ among them; steps and rounds are not told apart."""
    sampled = [row for row in rows if not row.real]
    differing = [name for name in _SETTINGS if len({getattr(row, name) for row in sampled}) > 1]
    found: dict[str, list[Row]] = {}
    for row in sampled:
        settings = [(name, getattr(row, name)) for name in differing]
        words = [_WORDS.get(name, f"{name} {{}}").format(value) for name, value in settings if value is not None]
        found.setdefault(", ".join([model_of(row), *words]), []).append(row)
    for name, column in found.items():
        if len({(row.steps, round_of(row)) for row in column}) < len(column):
            raise ValueError(f"two rows of {name} have the same steps and round: give each run a label of its own")
    return found


def grouped(rows: Sequence[Row], by: Callable[[Row], Any]) -> list[tuple[Any, list[Row]]]:
    """Rows by a value, in its order."""
    return [(value, [row for row in rows if by(row) == value]) for value in sorted({by(row) for row in rows})]


def round_of(row: Row) -> int:
    """A model that was not distilled is where rounds begin."""
    return row.round or 0


def has_rounds(rows: Sequence[Row]) -> bool:
    """Whether ``plot_rounds`` has anything to draw."""
    return any(row.round is not None for row in rows)


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


def table(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first line is its head."""
    head, *body = lines
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *body))


def markdown(rows: Sequence[Row]) -> str:
    """Gen PPL with its interval, and entropy, of each model by steps, as the paper's tables; in blocks by round."""
    found = columns(rows)
    rounds = has_rounds(rows)
    head = ["steps", *(f"{name}: {figure}" for name in found for figure in ("Gen PPL", "entropy"))]
    lines = [["round", *head] if rounds else head]
    for number, block in grouped([row for row in rows if not row.real], round_of):
        for _, same in grouped(block, lambda row: -row.steps):
            cells = [str(same[0].steps)]
            for column in found.values():
                match = [row for row in same if row in column]
                cells += figures(match[0]) if match else ["–", "–"]
            lines.append([str(number), *cells] if rounds else cells)
    return table(lines)


def figures(row: Row) -> list[str]:
    """Gen PPL with its interval, and entropy."""
    return [interval(row.gen_ppl, row.low, row.high, 1), f"{row.entropy:.2f}"]


def interval(value: float | None, low: float | None, high: float | None, digits: int) -> str:
    """A figure with its interval, as far as they are known."""
    if value is None:
        return "–"
    spread = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{spread}"


def details(rows: Sequence[Row]) -> str:
    """All that is known of each row."""
    lines = [detailed(row) for row in rows]
    return table([list(lines[0]), *(list(line.values()) for line in lines)])


def detailed(row: Row) -> dict[str, str]:
    """A row as people read it, by the heads of its columns; a dash is what it has not."""
    settings = {
        "model": model_of(row),
        "round": row.round,
        "steps": row.steps,
        "sampler": row.sampler,
        "eta": row.eta,
        "tail": row.tail,
        "grid": row.grid,
        "top-p": row.top_p,
        "temperature": row.temperature,
        "samples": row.num,
        "tokens": row.length,
        "seed": row.seed,
        "judge": row.judge,
    }
    return {
        **{name: "–" if value is None else str(value) for name, value in settings.items()},
        "Gen PPL": interval(row.gen_ppl, row.low, row.high, 1),
        "standard error": interval(row.stderr, None, None, 1),
        "entropy": interval(row.entropy, row.entropy_low, row.entropy_high, 3),
        "distinct-1": f"{row.distinct_1:.3f}",
        "distinct-2": f"{row.distinct_2:.3f}",
        "distinct-3": f"{row.distinct_3:.3f}",
        "self-repetition": f"{row.self_repetition:.3f}",
        "MAUVE": interval(row.mauve, None, None, 3),
        "NFE": f"{row.nfe:.1f}",
        "seconds per sample": f"{row.seconds_per_sample:.3g}",
    }


def remarks(rows: Sequence[Row]) -> list[str]:
    """What has to be said with a table: who judged, how many samples, and what real text is to that judge."""
    sampled = [row for row in rows if not row.real]
    counts = ", ".join(str(count) for count in sorted({row.num for row in sampled}))
    lengths = ", ".join(str(length) for length in sorted({row.length for row in sampled}))
    judges = ", ".join(sorted({row.judge for row in sampled if row.judge is not None}))
    lines = [f"{counts} samples of {lengths} tokens in each setting; entropy in nats, over the model's own tokens."]
    if judges:
        lines.append(f"Gen PPL under {judges}; in brackets its 95 % interval, by a bootstrap over samples.")
    for row in [row for row in rows if row.real]:
        likely = "" if row.gen_ppl is None else f"Gen PPL {interval(row.gen_ppl, row.low, row.high, 1)}, "
        lines.append(f"Real text, cut alike ({row.num} pieces of {row.length}): {likely}entropy {row.entropy:.2f}.")
    return lines
