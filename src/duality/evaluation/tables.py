"""Tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
