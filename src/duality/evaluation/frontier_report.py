"""The frontiers of a sweep as a figure and a table: quality against diversity over temperature (``frontiers``).

    OUT/frontiers.png    a curve for each model, round, number of steps and setting; a point for each temperature
    OUT/frontiers.md     every curve against one of the first model, at equal diversity
    OUT/frontiers.json   the same numbers

A curve is compared with the first model's curve of the same steps and settings, or else with the very first curve. Gen
PPL is interpolated as nats per token, and its difference is shown as a ratio. What must hold: the table is computed
from stored samples and scores alone, so that ``duality plot`` gives the table of ``duality quality``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from duality.evaluation.figures import Style, style
from duality.evaluation.frontiers import Curve, Difference, Values, curve_rows, curves_in, difference
from duality.evaluation.metrics import bootstrap, identity
from duality.evaluation.sweep.samples import Row
from duality.evaluation.tables import interval, score_columns, several_temperatures, table
from duality.files.atomic import json_text, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {
    "gen_ppl": "Gen PPL",
    "nats": "nats per token under the judge",
    "entropy": "entropy of a sample's tokens (nats)",
}
_SAME = ("steps", "sampler", "eta", "tail", "grid", "top_p", "length", "num", "seed", "judge")


@dataclass(frozen=True)
class Comparison:
    """A curve against another one, by their labels; ``difference`` is None if no diversity is common to both."""

    label: str
    against: str
    difference: Difference | None


@dataclass(frozen=True)
class Frontiers:
    """The curves of a sweep with their two measures, the rows they are made of, and the comparisons."""

    quality: str
    diversity: str
    curves: tuple[Curve, ...]
    comparisons: tuple[Comparison, ...]
    rows: tuple[Row, ...]

    def markdown(self) -> str:
        """The comparisons as a table, and what it means."""
        lines = ["\n".join(self.remarks())]
        if self.comparisons:
            head = ["model", "against", self.diversity, self.quality, "of the other", self.difference_name, "it is"]
            lines.insert(0, table([head, *(self.cells(each) for each in self.comparisons)]))
        return "\n".join(lines) + "\n"

    @property
    def difference_name(self) -> str:
        """What the column of differences shows."""
        return "ratio" if self.quality == "gen_ppl" else "difference"

    def cells(self, comparison: Comparison) -> list[str]:
        """A comparison as text."""
        found = comparison.difference
        if found is None:
            return [comparison.label, comparison.against, "none in common", "–", "–", "–", "–"]
        shown = shown_as(self.quality)
        digits = 1 if self.quality == "gen_ppl" else 3
        figures = [f"{shown(each):.{digits}f}" for each in (found.first, found.second)]
        value, low, high = (shown(each) for each in (found.value, found.low, found.high))
        word = "higher" if found.low > 0 else "lower" if found.high < 0 else "undecided"
        where = f"{found.at:.3f}{' (moved)' * found.clipped}"
        return [comparison.label, comparison.against, where, *figures, interval(value, low, high, 3), word]

    def remarks(self) -> list[str]:
        """Sentences that belong to the table."""
        lines = [
            f"Frontiers: {self.quality} against {self.diversity} over temperature. At equal {self.diversity}, linear "
            f"between temperatures; in brackets the 95 % interval of the {self.difference_name}, by a bootstrap over "
            "samples."
        ]
        if any(each.difference is not None and each.difference.clipped for each in self.comparisons):
            lines.append("(moved): the nearest value that both curves have to that of the other at temperature 1.")
        missing = sum(len(curve.points) - len(curve.known) for curve in self.curves)
        if missing:
            lines.append(f"{missing} points are left out: no sample has a number there.")
        return lines

    def to_json(self) -> dict[str, object]:
        """The measures and the comparisons."""
        return {
            "quality": self.quality,
            "diversity": self.diversity,
            "comparisons": [asdict(each) for each in self.comparisons],
        }


def frontiers(places: Mapping[Row, Path], quality: str | None = None, diversity: str | None = None) -> Frontiers:
    """The frontiers of rows, each in the folder of its sweep; ``default_measures`` if none are given."""
    rows = list(places)
    usual = (quality, diversity) if quality and diversity else default_measures(rows)
    chosen = (quality or usual[0], diversity or usual[1])
    curves = curves_in({row: out for row, out in places.items() if not row.real}, *chosen)
    return Frontiers(*chosen, tuple(curves), tuple(comparisons(rows, curves)), tuple(rows))


def has_frontiers(rows: Sequence[Row]) -> bool:
    """Whether there are frontiers to draw: more than one temperature, and a measure of quality."""
    return several_temperatures(rows) and any(row.judge is not None or row.scores for row in rows)


def default_measures(rows: Sequence[Row]) -> tuple[str, str]:
    """Quality and diversity: the first column of a scorer, else Gen PPL; novelty if it was measured, else entropy."""
    scores = score_columns(rows)
    if not scores and all(row.judge is None for row in rows):
        raise ValueError("no measure of quality: name a judge (--judge) or a scorer (--score)")
    return scores[0] if scores else "gen_ppl", "novelty" if "novelty" in scores else "entropy"


def comparisons(rows: Sequence[Row], curves: Sequence[Curve]) -> list[Comparison]:
    """Every curve but the first against the first model's curve of the same settings, or else the first curve."""
    settings = {label: same[0] for label, same in curve_rows(rows).items()}
    first = settings[curves[0].label]
    found = []
    for curve in curves[1:]:
        own = settings[curve.label]
        same = [
            other
            for other in curves
            if _model(settings[other.label]) == _model(first) != _model(own) and _alike(settings[other.label], own)
        ]
        other = same[0] if same else curves[0]
        found.append(Comparison(curve.label, other.label, difference([curve], [other])))
    return found


def _model(row: Row) -> tuple[Path, int | None, int | None]:
    """What distinguishes models: the run, the round and the checkpoint."""
    return row.run, row.round, row.checkpoint


def _alike(row: Row, other: Row) -> bool:
    """Whether two rows have the same settings, the temperature aside."""
    return all(getattr(row, name) == getattr(other, name) for name in _SAME)


def write_frontiers(places: Mapping[Row, Path], out: Path) -> Frontiers:
    """Write the figure, the table and its numbers into a folder."""
    found = frontiers(places)
    write_atomically(out / "frontiers.json", json_text(found.to_json(), indent=1))
    write_atomically(out / "frontiers.md", found.markdown())
    plot_frontiers(found, out / "frontiers.png")
    return found


# --- the figure


def shown_as(name: str) -> Callable[[float], float]:
    """How a figure of a measure is shown: Gen PPL is computed as its log."""
    return math.exp if name == "gen_ppl" else float


def measured(values: Values, name: str) -> tuple[float, list[float]]:
    """A figure as it is shown, and how far its interval reaches below and above it; not at all if it is not known."""
    of: Callable[[Tensor], Tensor] = torch.exp if name == "gen_ppl" else identity
    found = bootstrap(values.totals, values.counts, of)
    reach = [found.value - found.low, found.high - found.value] if found.known else [0.0, 0.0]
    return found.value, [max(0.0, each) for each in reach]


def plot_frontiers(found: Frontiers, target: Path) -> None:
    """Quality against diversity, as a PNG: a curve for each model and setting, its points labelled by temperature."""
    from matplotlib.figure import Figure  # without pyplot: the backend of a user's notebook stays as it is

    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    axes = figure.subplots()
    if found.quality == "gen_ppl":
        axes.set_yscale("log")
    for curve, look in zip(found.curves, _styles(found)):
        _draw_curve(axes, curve, found, look)
    for row in found.rows:
        place = [_value(row, name) for name in (found.diversity, found.quality)] if row.real else [None]
        if None not in place:
            axes.plot(*place, marker="*", ms=11, ls="", color="grey", label=row.label)
    judges = ", ".join(sorted({row.judge for row in found.rows if row.judge is not None}))
    quality = f"Gen PPL under {judges}" if found.quality == "gen_ppl" else _NAMES.get(found.quality, found.quality)
    axes.set(xlabel=_NAMES.get(found.diversity, found.diversity), ylabel=quality)
    axes.grid(alpha=0.3, which="both")
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if len(labels) > 1 else 1
    figure.set_figheight(4.6 + 0.2 * math.ceil(len(labels) / columns))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    figure.savefig(target, dpi=130)


def _styles(found: Frontiers) -> list[Style]:
    """A style for each curve: a hue for each model, later settings in darker shades."""
    models = [_model(same[0]) for same in curve_rows(found.rows).values()]
    hues = list(dict.fromkeys(models))
    return [
        style(hues.index(model), models[:place].count(model), models.count(model)) for place, model in enumerate(models)
    ]


def _draw_curve(axes: Axes, curve: Curve, found: Frontiers, look: Style) -> None:
    """One curve with the intervals of its points as thin bars."""
    points = sorted(curve.known, key=lambda point: float(point.diversity.totals.sum() / point.diversity.counts.sum()))
    if not points:
        return
    x, across = zip(*(measured(point.diversity, found.diversity) for point in points))
    y, along = zip(*(measured(point.quality, found.quality) for point in points))
    axes.errorbar(
        x,
        y,
        xerr=torch.tensor(across).T.numpy(),
        yerr=torch.tensor(along).T.numpy(),
        marker="o",
        ms=4,
        lw=1.6,
        elinewidth=0.6,
        label=curve.label,
        **look,
    )
    for point, *place in zip(points, x, y):
        axes.annotate(f"{point.temperature:g}", tuple(place), (3, 3), textcoords="offset points", fontsize=6.5)


def _value(row: Row, name: str) -> float | None:
    """A measure of a row; None if it was not measured."""
    if name in row.scores:
        return row.scores[name].value
    if name == "nats":
        return None if row.gen_ppl is None else math.log(row.gen_ppl)
    value: float | None = getattr(row, name, None)
    return value
