"""The loss curve of a run: the rows of metrics.jsonl as a figure.

Rows with a ``loss`` are training steps, rows with ``validation_nats`` are validations; others are not drawn.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

HELD_OUT = ("validation_nats", "validation_stderr")  # of a row; a number that is not finite is None in metrics.jsonl
_WINDOW = 15


def running_mean(values: list[float]) -> list[float]:
    """The mean of the last few values, fewer at the beginning."""
    return [sum(part) / len(part) for part in (values[max(0, i - _WINDOW) : i + 1] for i in range(len(values)))]


def plot_losses(metrics: list[dict[str, Any]], target: Path, title: str) -> None:
    """Training loss by phase (single steps are faint) and validation bound against steps, as a PNG."""
    from matplotlib.figure import Figure  # without pyplot: the backend of a user's notebook stays as it is

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    training = [row for row in metrics if "loss" in row]
    for number, phase in enumerate(dict.fromkeys(row["phase"] for row in training)):
        rows = [row for row in training if row["phase"] == phase]
        steps, losses = [row["step"] for row in rows], [row["loss"] for row in rows]
        axes.plot(steps, losses, lw=0.6, alpha=0.4, color=f"C{number}")
        axes.plot(steps, running_mean(losses), lw=1.6, color=f"C{number}", label=f"training, {phase}")
    held_out = [row for row in metrics if "validation_nats" in row]
    nats, errors = ([math.nan if row[name] is None else row[name] for row in held_out] for name in HELD_OUT)
    axes.errorbar(
        [row["step"] for row in held_out],
        nats,
        errors,
        fmt="o-",
        color="black",
        ms=4,
        label="validation bound",
    )
    axes.set(xlabel="step", ylabel="nats per token", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(target, dpi=130)
