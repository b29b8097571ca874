"""Rows in Markdown: the short table of the paper (``short_table``), all measures (``full_table``), and ``remarks``.

A column of the short table is a model with the settings that differ among the rows; its lines are numbers of steps and
temperatures, in blocks by round of distillation. The short table shows Gen PPL and entropy, or, without a judge, the
columns of the first scorer if there is one. A dash means "not measured".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import compress, groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `duality recipes --table` needs no torch
    from duality.evaluation.samples import Interval, Row

SHORT = {"gen_ppl": "Gen PPL", "entropy": "entropy"}  # the measures of the short table, and their heads
_SETTINGS = {
    "sampler": "{} sampler", "eta": "eta {}", "tail": "{} tail", "grid": "{} grid", "top_p": "top-p {}",
    "temperature": "temperature {}", "length": "{} tokens", "num": "{} samples", "seed": "seed {}",
    "precision": "{}", "judge": "read by {}",
}  # fmt: skip
_DETAILS = {  # head, field of a row and how it is written
    "round": ("round", ""), "steps": ("steps", ""), "sampler": ("sampler", ""), "eta": ("eta", ""),
    "tail": ("tail", ""), "grid": ("grid", ""), "top-p": ("top_p", ""), "temperature": ("temperature", ""),
    "samples": ("num", ""), "tokens": ("length", ""), "seed": ("seed", ""),
    "precision": ("precision", ""), "judge": ("judge", ""),
    "Gen PPL": ("gen_ppl", ".1f"), "standard error": ("stderr", ".1f"), "entropy": ("entropy", ".3f"),
    "distinct-1": ("distinct_1", ".3f"), "distinct-2": ("distinct_2", ".3f"), "distinct-3": ("distinct_3", ".3f"),
    "self-repetition": ("self_repetition", ".3f"), "MAUVE": ("mauve", ".3f"), "NFE": ("nfe", ".1f"),
    "seconds per sample": ("seconds_per_sample", ".3g"), "empty": ("empty", ""),
}  # fmt: skip


def columns(rows: Sequence[Row], together: Collection[str] = ()) -> dict[str, list[Row]]:
    """Rows of samples by model and by the settings that differ among them; steps and rounds share a column.

    The settings ``together`` share a column too.
    """
    sampled = [row for row in rows if not row.real]
    apart = [name for name in _SETTINGS if name not in together and len({getattr(row, name) for row in sampled}) > 1]
    found: dict[str, list[Row]] = {}
    for row in sampled:
        words = [_SETTINGS[name].format(getattr(row, name)) for name in apart if getattr(row, name) is not None]
        found.setdefault(", ".join([_model_of(row), *words]), []).append(row)
    for name, column in found.items():
        places = {(row.steps, row.round or 0, *(getattr(row, each) for each in together)) for row in column}
        if len(places) < len(column):
            raise ValueError(f"two rows of {name} have the same steps and round: give each run a label of its own")
    return found


def group_rows(rows: Sequence[Row], by: Callable[[Row], int | tuple[float, ...]]) -> list[list[Row]]:
    """Rows that are alike in a number, or in several, in its order."""
    return [list(alike) for _, alike in groupby(sorted(rows, key=by), by)]


def _model_of(row: Row) -> str:
    """The label without its round."""
    return row.label if row.round is None else row.label.removesuffix(f", round {row.round}")


def has_rounds(rows: Sequence[Row]) -> bool:
    """Whether any row is of a round of distillation."""
    return any(row.round is not None for row in rows)


def several_temperatures(rows: Sequence[Row]) -> bool:
    """Whether samples of more than one temperature were measured."""
    return len({row.temperature for row in rows if not row.real}) > 1


def score_columns(rows: Sequence[Row]) -> list[str]:
    """The columns of scorers, in the order in which they first stand."""
    return list(dict.fromkeys(name for row in rows for name in row.scores))


def table(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first line is its head."""
    head, *body = lines
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *body))


def cell(found: Interval, spec: str) -> str:
    """A value with its interval, as far as they are known, written as the format ``spec`` says."""
    value, low, high = found
    spread = "" if low is None or high is None else f" [{low:{spec}}, {high:{spec}}]"
    return "–" if value is None else f"{value:{spec}}{spread}"


def short_cells(row: Row, names: Sequence[str] = tuple(SHORT)) -> list[str]:
    """Gen PPL with its interval, and entropy, or the columns of a scorer, as cells."""
    return [
        f"{row.entropy:.2f}" if name == "entropy" else cell(row.measure(name), ".1f" if name == "gen_ppl" else ".3f")
        for name in names
    ]


def short_table(rows: Sequence[Row]) -> str:
    """The short measures of each model by steps and temperature, as the paper's tables; in blocks by round."""
    found, measures = columns(rows, ("temperature",)), list(SHORT)
    scores = [score for row in rows for score in row.scores.items()]
    if scores and all(row.judge is None for row in rows):
        measures = list(dict.fromkeys(name for name, score in scores if score.scorer == scores[0][1].scorer))
    leading = ["round"] * has_rounds(rows) + ["steps"] + ["temperature"] * several_temperatures(rows)
    lines = [[*leading, *(f"{name}: {SHORT.get(measure, measure)}" for name in found for measure in measures)]]
    sampled = [row for row in rows if not row.real]
    for same in group_rows(sampled, lambda row: (row.round or 0, -row.steps, row.temperature)):
        line = [str(getattr(same[0], name) or 0) for name in leading]
        for column in found.values():
            match = [row for row in same if row in column]
            line += short_cells(match[0], measures) if match else ["–"] * len(measures)
        lines.append(line)
    return table(lines)


def all_tables(rows: Sequence[Row], differing: bool = False) -> str:
    """The short table, its remarks and the full table, of which ``differing`` leaves out what says nothing."""
    return "\n".join([short_table(rows), *(f"{line}\n" for line in remarks(rows)), full_table(rows, differing)])


def full_table(rows: Sequence[Row], differing: bool = False) -> str:
    """A table of everything that is known of each row.

    ``differing`` leaves out settings that all samples have in common, and measures that no row has.
    """
    scores = score_columns(rows)
    lines = [["model", *_DETAILS, *scores]]
    for row in rows:
        line = [_model_of(row)]
        for name, spec in _DETAILS.values():
            line.append(cell(row.measure(name) if name in SHORT else (getattr(row, name), None, None), spec))
        lines.append([*line, *(cell(row.measure(name), ".3f") for name in scores)])
    if differing:
        settings = [head for head, (name, _) in _DETAILS.items() if name in _SETTINGS or name in ("round", "steps")]
        sampled = [not row.real for row in rows]
        kept = []
        for head, *cells in zip(*lines, strict=True):
            common = len(set(compress(cells, sampled))) < 2
            if not common if head in settings else set(cells) != {"–"}:
                kept.append([head, *cells])
        lines = [list(line) for line in zip(*kept, strict=True)]
    return table(lines)


def remarks(rows: Sequence[Row]) -> list[str]:
    """Sentences that belong to a table: which judge, how many samples, and the measures of real text."""
    sampled = [row for row in rows if not row.real]
    counts, lengths, judges = (
        ", ".join(map(str, sorted({getattr(row, name) for row in sampled} - {None})))
        for name in ("num", "length", "judge")
    )
    scorers = "; ".join(dict.fromkeys(score.scorer for row in sampled for score in row.scores.values()))
    empty = sum(row.empty for row in sampled)
    lines = [f"{counts} samples of {lengths} tokens in each setting; entropy in nats, over the model's own tokens."]
    if judges:
        lines.append(f"Gen PPL under {judges}; in brackets its 95 % interval, by a bootstrap over samples.")
    if scorers:
        lines.append(f"Scores by {scorers}; in brackets their 95 % intervals, by a bootstrap over samples.")
    if empty:
        lines.append(
            f"{empty} of {sum(row.num for row in sampled)} samples are empty: a judge does not count them (the table "
            "of all measures has their number in each setting)."
        )
    for row in [row for row in rows if row.real]:
        likely, entropy = short_cells(row)
        judged = "" if row.gen_ppl is None else f"Gen PPL {likely}, "
        scored = "".join(f", {name} {cell(row.measure(name), '.3f')}" for name in row.scores)
        lines.append(f"Real text, cut alike ({row.num} pieces of {row.length}): {judged}entropy {entropy}{scored}.")
    return lines
