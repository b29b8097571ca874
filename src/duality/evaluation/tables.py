"""Rows in Markdown: the short table of the paper (``markdown``), all measures (``details``), and ``remarks``.

A column of the short table is a model with the settings that differ among the rows; its lines are numbers of steps and
temperatures, in blocks by round of distillation. The short table shows Gen PPL and entropy, or, without a judge, the
columns of the first scorer if there is one. A dash means "not measured".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # `duality recipes --table` needs no torch
    from duality.evaluation.sweep.samples import Row, Score

T = TypeVar("T", int, float, tuple[float, ...])

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


SHORT = ("Gen PPL", "entropy")  # the heads of ``short_cells``
TEMPERATURE = "temperature"


def model_of(row: Row) -> str:
    """The label without its round."""
    return row.label if row.round is None else row.label.removesuffix(f", round {row.round}")


def columns(rows: Sequence[Row], together: Collection[str] = ()) -> dict[str, list[Row]]:
    """Rows of samples by model and by the settings that differ among them; steps and rounds share a column.

    The settings ``together`` share a column too.
    """
    sampled = [row for row in rows if not row.real]
    apart = [name for name in _SETTINGS if name not in together]
    differing = [name for name in apart if len({getattr(row, name) for row in sampled}) > 1]
    found: dict[str, list[Row]] = {}
    for row in sampled:
        settings = [(name, getattr(row, name)) for name in differing]
        words = [_WORDS.get(name, f"{name} {{}}").format(value) for name, value in settings if value is not None]
        found.setdefault(", ".join([model_of(row), *words]), []).append(row)
    for name, column in found.items():
        places = {(row.steps, round_of(row), *(getattr(row, each) for each in together)) for row in column}
        if len(places) < len(column):
            raise ValueError(f"two rows of {name} have the same steps and round: give each run a label of its own")
    return found


def grouped(rows: Sequence[Row], by: Callable[[Row], T]) -> list[tuple[T, list[Row]]]:
    """Rows by a number, in its order."""
    return [(value, [row for row in rows if by(row) == value]) for value in sorted({by(row) for row in rows})]


def round_of(row: Row) -> int:
    """The round of distillation; 0 for a model that was not distilled."""
    return row.round or 0


def has_rounds(rows: Sequence[Row]) -> bool:
    """Whether any row is of a round of distillation."""
    return any(row.round is not None for row in rows)


def table(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first line is its head."""
    head, *body = lines
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *body))


def several_temperatures(rows: Sequence[Row]) -> bool:
    """Whether samples of more than one temperature were measured."""
    return len({row.temperature for row in rows if not row.real}) > 1


def markdown(rows: Sequence[Row]) -> str:
    """The short measures of each model by steps and temperature, as the paper's tables; in blocks by round."""
    found = columns(rows, (TEMPERATURE,))
    leading: dict[str, Callable[[Row], float]] = {"round": round_of} if has_rounds(rows) else {}
    leading["steps"] = lambda row: row.steps
    if several_temperatures(rows):
        leading[TEMPERATURE] = lambda row: row.temperature
    heads = short_heads(rows)
    lines = [[*leading, *(f"{name}: {figure}" for name in found for figure in heads)]]
    for _, same in grouped(
        [row for row in rows if not row.real], lambda row: (round_of(row), -row.steps, row.temperature)
    ):
        cells = [str(of(same[0])) for of in leading.values()]
        for column in found.values():
            match = [row for row in same if row in column]
            cells += short_cells(match[0], heads) if match else ["–"] * len(heads)
        lines.append(cells)
    return table(lines)


def short_heads(rows: Sequence[Row]) -> tuple[str, ...]:
    """The measures of the short table: Gen PPL and entropy, or without a judge the columns of the first scorer."""
    scores = score_columns(rows)
    if not scores or any(row.judge is not None for row in rows):
        return SHORT
    first = next(row.scores[scores[0]].scorer for row in rows if scores[0] in row.scores)
    return tuple(name for name in scores if any(first == row.scores[name].scorer for row in rows if name in row.scores))


def score_columns(rows: Sequence[Row]) -> list[str]:
    """The columns of scorers, in the order in which they first stand."""
    return list(dict.fromkeys(name for row in rows for name in row.scores))


def short_cells(row: Row, heads: Sequence[str] = SHORT) -> list[str]:
    """Gen PPL with its interval, and entropy, or the columns of a scorer, as cells."""
    cells = {"Gen PPL": interval(row.gen_ppl, row.low, row.high, 1), "entropy": f"{row.entropy:.2f}"}
    return [cells[head] if head in SHORT else score_cell(row.scores.get(head)) for head in heads]


def score_cell(score: Score | None) -> str:
    """A column of a scorer, as a cell."""
    return "–" if score is None else interval(score.value, score.low, score.high, 3)


def interval(value: float | None, low: float | None, high: float | None, digits: int) -> str:
    """A value with its interval, as far as they are known."""
    if value is None:
        return "–"
    spread = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{spread}"


def details(rows: Sequence[Row]) -> str:
    """A table of everything that is known of each row."""
    lines = [named_cells(row) for row in rows]
    scores = score_columns(rows)
    body = [[*line.values(), *(score_cell(row.scores.get(name)) for name in scores)] for row, line in zip(rows, lines)]
    return table([[*lines[0], *scores], *body])


def named_cells(row: Row) -> dict[str, str]:
    """The cells of a row, by the heads of their columns."""
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
        "empty": str(row.empty),
    }


def remarks(rows: Sequence[Row]) -> list[str]:
    """Sentences that belong to a table: which judge, how many samples, and the measures of real text."""
    sampled = [row for row in rows if not row.real]
    counts = ", ".join(str(count) for count in sorted({row.num for row in sampled}))
    lengths = ", ".join(str(length) for length in sorted({row.length for row in sampled}))
    judges = ", ".join(sorted({row.judge for row in sampled if row.judge is not None}))
    lines = [f"{counts} samples of {lengths} tokens in each setting; entropy in nats, over the model's own tokens."]
    if judges:
        lines.append(f"Gen PPL under {judges}; in brackets its 95 % interval, by a bootstrap over samples.")
    scorers = dict.fromkeys(score.scorer for row in sampled for score in row.scores.values())
    if scorers:
        lines.append(f"Scores by {'; '.join(scorers)}; in brackets their 95 % intervals, by a bootstrap over samples.")
    empty = [row for row in sampled if row.empty]
    if empty:
        lines.append(
            f"{sum(row.empty for row in empty)} of {sum(row.num for row in sampled)} samples are empty: a judge does "
            "not count them (the table of all measures has their number in each setting)."
        )
    for row in [row for row in rows if row.real]:
        likely, entropy = short_cells(row)
        judged = "" if row.gen_ppl is None else f"Gen PPL {likely}, "
        scored = "".join(f", {name} {score_cell(score)}" for name, score in row.scores.items())
        lines.append(f"Real text, cut alike ({row.num} pieces of {row.length}): {judged}entropy {entropy}{scored}.")
    return lines
