"""Rows in Markdown: the short table of the paper (``markdown``), all measures (``details``), and ``remarks``.

A column of the short table is a model with the settings that differ among the rows; its lines are numbers of steps,
in blocks by round of distillation. A dash means "not measured".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duality.evaluation.cases import Row

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


def model_of(row: Row) -> str:
    """The label without its round."""
    return row.label if row.round is None else row.label.removesuffix(f", round {row.round}")


def columns(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of samples by model and by the settings that differ among them; steps and rounds share a column."""
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


def grouped(rows: Sequence[Row], by: Callable[[Row], int]) -> list[tuple[int, list[Row]]]:
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


def markdown(rows: Sequence[Row]) -> str:
    """Gen PPL with its interval, and entropy, of each model by steps, as the paper's tables; in blocks by round."""
    found = columns(rows)
    rounds = has_rounds(rows)
    head = ["steps", *(f"{name}: {figure}" for name in found for figure in SHORT)]
    lines = [["round", *head] if rounds else head]
    for number, block in grouped([row for row in rows if not row.real], round_of):
        for _, same in grouped(block, lambda row: -row.steps):
            cells = [str(same[0].steps)]
            for column in found.values():
                match = [row for row in same if row in column]
                cells += short_cells(match[0]) if match else ["–", "–"]
            lines.append([str(number), *cells] if rounds else cells)
    return table(lines)


def short_cells(row: Row) -> list[str]:
    """Gen PPL with its interval, and entropy, as cells."""
    return [interval(row.gen_ppl, row.low, row.high, 1), f"{row.entropy:.2f}"]


def interval(value: float | None, low: float | None, high: float | None, digits: int) -> str:
    """A value with its interval, as far as they are known."""
    if value is None:
        return "–"
    spread = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{spread}"


def details(rows: Sequence[Row]) -> str:
    """A table of everything that is known of each row."""
    lines = [named_cells(row) for row in rows]
    return table([list(lines[0]), *(list(line.values()) for line in lines)])


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
    for row in [row for row in rows if row.real]:
        likely, entropy = short_cells(row)
        judged = "" if row.gen_ppl is None else f"Gen PPL {likely}, "
        lines.append(f"Real text, cut alike ({row.num} pieces of {row.length}): {judged}entropy {entropy}.")
    return lines
