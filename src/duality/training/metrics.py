"""metrics.jsonl: a line of JSON per logged step, validation or change, in the order of the steps; and the loss curve.

Rows with a ``loss`` are training steps, rows with ``validation_nats`` are validations; others are not drawn. ``loss``
is nats per token that is trained on; ``nats_per_token``, which a row has where padding is among these, is for each real
token, as in a validation, and is what is shown. A validation has ``MARKS`` too, the nats per token that counts of
tokens and of pairs give (``data.frequencies``).

What must hold: every row has its step, a whole number, and what the package computes with is a number; any other line
is an error that names it, except a last line that was cut short by a crash.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from duality.files.atomic import json_text, write_atomically
from duality.files.json_files import MIB, parse_json, read_bounded

METRICS = "metrics.jsonl"
HELD_OUT = ("validation_nats", "validation_stderr")  # of a row; a number that is not finite is None in metrics.jsonl
MARKS = ("validation_frequencies", "validation_pairs")

_MOST_BYTES = 1024 * MIB
_NUMBERS = ("loss", "nats_per_token", "learning_rate", "gradient_norm", "seconds", "since", *HELD_OUT, *MARKS)
_KINDS = {"phase": str, "changed": list, "validation_kind": str}
_TOGETHER = (("loss", "phase"), ("validation_nats", "validation_stderr"))
_LARGEST = 1 << 63
_REMEDY = "restore or delete the line"
_WINDOW = 15  # steps of the loss curve, of which it shows the mean


def append_metrics(folder: Path, row: dict[str, Any]) -> None:
    """Add a row."""
    with (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(json_text(row) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl; a last line cut short by a crash is left out."""
    path = folder / METRICS
    lines = read_bounded(path, _MOST_BYTES).splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number},"
        try:
            row = parse_json(line, where, _REMEDY)
        except ValueError:
            if number < len(lines):
                raise
        else:
            rows.append(_check_row(row, where))
    return rows


def _check_row(row: object, where: str) -> dict[str, Any]:
    """A row that is one."""
    if not isinstance(row, dict) or type(row.get("step")) is not int or not 0 <= row["step"] < _LARGEST:
        raise ValueError(f"{where} is damaged (it has no step, which is a whole number): {_REMEDY}")
    # the error of a single sequence is not finite, and stands there as null
    known = {name: value for name, value in row.items() if value is not None or name not in HELD_OUT}
    computable = {  # JSON has whole numbers of any size
        name for name, value in known.items() if type(value) is float or (type(value) is int and abs(value) < _LARGEST)
    }
    wrong = [name for name in _NUMBERS if name in known and name not in computable]
    wrong += [name for name, kind in _KINDS.items() if name in row and not isinstance(row[name], kind)]
    wrong += [other for name, other in _TOGETHER if name in row and other not in row]
    if wrong:
        raise ValueError(f"{where} is damaged ({wrong[0]} is {row.get(wrong[0], 'missing')!r:.40}): {_REMEDY}")
    return row


def rewind_metrics(folder: Path, step: int) -> set[int]:
    """Remove the rows after ``step``: those steps are taken again. The steps that have a validation."""
    rows = [row for row in read_metrics(folder) if row["step"] <= step]
    write_atomically(folder / METRICS, "".join(json_text(row) + "\n" for row in rows))
    return {row["step"] for row in rows if "validation_nats" in row}


def compare_with_counts(metrics: list[dict[str, Any]], rate: float) -> str | None:
    """What the last validation says beside its ``MARKS``; None if it has none."""
    last: dict[str, Any] = next((row for row in reversed(metrics) if "validation_nats" in row), {})
    if any(name not in last for name in MARKS):
        return None
    nats, (tokens, pairs) = last["validation_nats"], (last[name] for name in MARKS)
    if nats is not None and nats < tokens:
        return f"token frequencies alone give {tokens:.2f} nats per token, pairs of tokens {pairs:.2f}"
    return (
        f"no better than the frequencies of tokens ({tokens:.2f} nats per token; pairs of tokens {pairs:.2f}): train "
        f"longer, or lower the learning rate (--set training.learning_rate={rate / 3:.1g}, now {rate:.1g})"
    )


def plot_losses(metrics: list[dict[str, Any]], target: Path, title: str) -> None:
    """Training loss by phase, the validation bound and its marks, against steps, as a PNG.

    Single steps are faint; the line is the mean of the last few, fewer at the beginning.
    """
    from matplotlib.figure import Figure  # without pyplot: the backend of a user's notebook stays as it is

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    training = [row for row in metrics if "loss" in row]
    for number, phase in enumerate(dict.fromkeys(row["phase"] for row in training)):
        rows = [row for row in training if row["phase"] == phase]
        steps, losses = [row["step"] for row in rows], [row.get("nats_per_token", row["loss"]) for row in rows]
        axes.plot(steps, losses, lw=0.6, alpha=0.4, color=f"C{number}")
        recent = (losses[max(0, last - _WINDOW) : last] for last in range(1, len(losses) + 1))
        means = [sum(part) / len(part) for part in recent]
        axes.plot(steps, means, lw=1.6, color=f"C{number}", label=f"training, {phase}")
    held_out = [row for row in metrics if "validation_nats" in row]
    nats, errors = ([math.nan if row[name] is None else row[name] for row in held_out] for name in HELD_OUT)
    steps = [row["step"] for row in held_out]
    axes.errorbar(steps, nats, errors, fmt="o-", color="black", ms=4, label="validation bound")
    for name, style in zip(MARKS, ("--", ":"), strict=True):
        for value in [row[name] for row in held_out if name in row][-1:]:
            words = f"{name.removeprefix('validation_')} of tokens, {value:.2f}"
            axes.axhline(value, color="gray", ls=style, lw=1, label=words)
    axes.set(xlabel="step", ylabel="nats per token", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(target, dpi=130)
