"""The frontiers of a sweep as a table: quality against diversity over temperature (``frontiers``).

    OUT/frontiers.png    a curve for each model, round, number of steps and setting; a point for each temperature
    OUT/frontiers.md     every curve against one of the first model, at equal diversity
    OUT/frontiers.json   the same numbers

A curve is compared with the first model's curve of the same steps and settings, or else with the very first curve.
Quality and diversity are ``gen_ppl`` or ``nats`` (both: the judge's nats per token, the log of Gen PPL), ``entropy``,
``distinct_1``, ``distinct_2``, ``distinct_3``, or a column of a scorer. Gen PPL is interpolated as nats per token, and
its difference is shown as a ratio. What must hold: the table is computed from stored samples and scores alone, so that
``duality plot`` gives the table of ``duality quality``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch

from duality.evaluation.figures import canvas, label_of_measure, save, style, use_log_scale
from duality.evaluation.frontiers import Curve, Difference, Point, Values, difference
from duality.evaluation.metrics import distinct_shares, entropies
from duality.evaluation.samples import Row, Samples, read_samples, sample_path
from duality.evaluation.scorers import Column, totals_and_counts
from duality.evaluation.statistics import bootstrap
from duality.evaluation.tables import cell, columns, group_rows, round_of, score_columns, several_temperatures, table
from duality.files.atomic import file_sha256, json_text, write_atomically
from duality.files.kept_scores import FILE, Scores
from duality.files.progress import silent

_SAME = ("steps", "sampler", "eta", "tail", "grid", "top_p", "length", "num", "seed", "judge")


@dataclass(frozen=True)
class _Comparison:
    """A curve against another one, by their labels; ``difference`` is None if no diversity is common to both."""

    label: str
    against: str
    difference: Difference | None


@dataclass(frozen=True)
class _Frontiers:
    """The curves of a sweep with their two measures, the rows of each, all rows, and the comparisons."""

    quality: str
    diversity: str
    curves: tuple[Curve, ...]
    comparisons: tuple[_Comparison, ...]
    rows: tuple[Row, ...]

    def markdown(self) -> str:
        """The comparisons as a table, and what it means."""
        difference_name = "ratio" if self.quality == "gen_ppl" else "difference"
        lines = [
            f"Frontiers: {self.quality} against {self.diversity} over temperature. At equal {self.diversity}, linear "
            f"between temperatures; in brackets the 95 % interval of the {difference_name}, by a bootstrap over "
            "samples."
        ]
        if any(each.difference is not None and each.difference.clipped for each in self.comparisons):
            lines.append("(moved): the nearest value that both curves have to that of the other at temperature 1.")
        missing = sum(len(curve.points) - len(curve.known) for curve in self.curves)
        if missing:
            lines.append(f"{missing} points are left out: no sample has a number there.")
        if self.comparisons:
            head = ["model", "against", self.diversity, self.quality, "of the other", difference_name, "it is"]
            lines.insert(0, table([head, *(self._cells(each) for each in self.comparisons)]))
        return "\n".join(lines) + "\n"

    def _cells(self, comparison: _Comparison) -> list[str]:
        """A comparison as text."""
        found = comparison.difference
        if found is None:
            return [comparison.label, comparison.against, "none in common", "–", "–", "–", "–"]
        shown, spec = (math.exp, ".1f") if self.quality == "gen_ppl" else (float, ".3f")
        figures = [f"{shown(each):{spec}}" for each in (found.first, found.second)]
        spread = cell((shown(found.value), shown(found.low), shown(found.high)), ".3f")
        word = "higher" if found.low > 0 else "lower" if found.high < 0 else "undecided"
        where = f"{found.at:.3f}{' (moved)' * found.clipped}"
        return [comparison.label, comparison.against, where, *figures, spread, word]

    def to_json(self) -> dict[str, object]:
        """The measures and the comparisons."""
        comparisons = [asdict(each) for each in self.comparisons]
        return {"quality": self.quality, "diversity": self.diversity, "comparisons": comparisons}


def has_frontiers(rows: Sequence[Row]) -> bool:
    """Whether there are frontiers to draw: more than one temperature, and a measure of quality."""
    return several_temperatures(rows) and any(row.judge is not None or row.scores for row in rows)


def frontiers(places: Mapping[Row, Path], quality: str | None = None, diversity: str | None = None) -> _Frontiers:
    """The frontiers of rows, each in the folder of its sweep.

    Every curve but the first is compared: with the first model's curve of the same settings, or else with the first
    curve.
    """
    rows = list(places)
    if not (quality and diversity):
        usual = _default_measures(rows)
        quality, diversity = quality or usual[0], diversity or usual[1]
    curves = curves_of({row: out for row, out in places.items() if not row.real}, quality, diversity)
    settings = {label: same[0] for label, same in _curve_rows(rows).items()}
    first, comparisons = settings[curves[0].label], []
    for curve in curves[1:]:
        own, other = settings[curve.label], curves[0]
        for each in curves:
            row = settings[each.label]
            alike = all(getattr(row, name) == getattr(own, name) for name in _SAME)
            if alike and _model(row) == _model(first) != _model(own):
                other = each
                break
        comparisons.append(_Comparison(curve.label, other.label, difference([curve], [other])))
    return _Frontiers(quality, diversity, tuple(curves), tuple(comparisons), tuple(rows))


def _default_measures(rows: Sequence[Row]) -> tuple[str, str]:
    """Quality and diversity: the first column of a scorer, else Gen PPL; novelty if it was measured, else entropy."""
    scores = score_columns(rows)
    if not scores and all(row.judge is None for row in rows):
        raise ValueError("no measure of quality: name a judge (--judge) or a scorer (--score)")
    return scores[0] if scores else "gen_ppl", "novelty" if "novelty" in scores else "entropy"


def write_frontiers(places: Mapping[Row, Path], out: Path) -> _Frontiers:
    """Write the figure, the table and its numbers into a folder."""
    found = frontiers(places)
    write_atomically(out / "frontiers.json", json_text(found.to_json(), indent=1))
    write_atomically(out / "frontiers.md", found.markdown())
    plot_frontiers(found, out / "frontiers.png")
    return found


def _model(row: Row) -> tuple[Path, int | None, int | None]:
    """What distinguishes models: the run, the round and the checkpoint."""
    return row.run, row.round, row.checkpoint


# --- curves from the folder of a sweep


def _curve_rows(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that differ in temperature alone, by label: the model with its settings, its round and steps."""
    found: dict[str, list[Row]] = {}
    for name, column in columns(rows, ("temperature",)).items():
        for _, same in group_rows(column, lambda row: (round_of(row), row.steps)):
            rounds = "" if same[0].round is None else f", round {same[0].round}"
            label = f"{name}{rounds}, {same[0].steps} step{'s' * (same[0].steps != 1)}"
            found[label] = sorted(same, key=lambda row: row.temperature)
    return found


def curves_of(places: Mapping[Row, Path], quality: str, diversity: str) -> list[Curve]:
    """The curves of rows from their samples and scores, which are in the folder of a sweep for each row."""
    scores = {out: Scores.read(out / FILE, silent) for out in set(places.values())}

    def point(row: Row) -> Point:
        path = sample_path(places[row], row)
        samples, kept = read_samples(path, row), scores[places[row]]
        found = [_values_of(row, name, samples, file_sha256(path), kept) for name in (quality, diversity)]
        return Point(row.temperature, *found)

    return [Curve(label, tuple(map(point, same))) for label, same in _curve_rows(list(places)).items()]


def _values_of(row: Row, name: str, samples: Samples, checksum: str, scores: Scores) -> Values:
    """The numbers of a row's samples that the measure ``name`` is made of."""
    if name in ("gen_ppl", "nats") and row.judge is not None:
        pairs = cast(list[tuple[float, int]], scores.find(row.judge, checksum))
        nats, tokens = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        return Values(nats, tokens)
    if name == "entropy":
        values = entropies(samples.tokens)
        return Values(values, torch.ones_like(values))
    if name in ("distinct_1", "distinct_2", "distinct_3"):
        return Values(*distinct_shares(samples.tokens, int(name[-1])))
    if name in row.scores:
        kept = cast(dict[str, Column], scores.find(row.scores[name].scorer, checksum))
        return Values(*totals_and_counts(kept[name]))
    judged = ["gen_ppl"] if row.judge is not None else []
    choices = ", ".join([*judged, "entropy", "distinct_1", "distinct_2", "distinct_3", *row.scores])
    raise ValueError(f"{row.label} was not measured by {name!r}: choose from {choices}")


# --- the figure


def plot_frontiers(found: _Frontiers, target: Path) -> None:
    """Quality against diversity, as a PNG: a hue for each model, later settings darker, points with temperatures."""
    figure, (axes,) = canvas()
    axes.set(xlabel=label_of_measure(found.diversity, found.rows), ylabel=label_of_measure(found.quality, found.rows))
    if found.quality == "gen_ppl":
        use_log_scale(axes)
    models = [_model(same[0]) for same in _curve_rows(found.rows).values()]
    hues = list(dict.fromkeys(models))
    for place, (curve, model) in enumerate(zip(found.curves, models, strict=True)):
        look = style(hues.index(model), models[:place].count(model), models.count(model))
        points = sorted(curve.known, key=lambda each: float(each.diversity.totals.sum() / each.diversity.counts.sum()))
        if not points:
            continue
        x, across = zip(*(_with_reach(point.diversity, found.diversity) for point in points))
        y, along = zip(*(_with_reach(point.quality, found.quality) for point in points))
        axes.errorbar(x, y, torch.tensor(along).T.numpy(), torch.tensor(across).T.numpy(), elinewidth=0.6, **look)
        axes.plot(x, y, marker="o", ms=4, lw=1.6, label=curve.label, **look)
        for point, *end in zip(points, x, y):
            axes.annotate(f"{point.temperature:g}", tuple(end), (3, 3), textcoords="offset points", fontsize=6.5)
    for row in found.rows:
        ends = [row.measure(name)[0] for name in (found.diversity, found.quality)] if row.real else [None]
        if None not in ends:
            axes.plot(*ends, marker="*", ms=11, ls="", color="grey", label=row.label)
    save(figure, target)


def _with_reach(values: Values, name: str) -> tuple[float, list[float]]:
    """A figure as it is shown, and how far its interval reaches below and above it; not at all if it is not known."""
    found = bootstrap(values.totals, values.counts, torch.exp if name == "gen_ppl" else lambda mean: mean)
    _, low, high = found.spread
    if low is None or high is None:
        return found.value, [0.0, 0.0]
    return found.value, [max(0.0, found.value - low), max(0.0, high - found.value)]
