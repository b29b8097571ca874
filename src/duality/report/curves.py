"""The loss curve of a run, from its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plot_losses(metrics: list[dict[str, Any]], target: Path, title: str) -> None:
    """Training loss by phase and validation bound against steps, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    training = [row for row in metrics if "loss" in row]
    for phase in dict.fromkeys(row["phase"] for row in training):
        rows = [row for row in training if row["phase"] == phase]
        axes.plot([row["step"] for row in rows], [row["loss"] for row in rows], lw=1, label=f"training, {phase}")
    held_out = [row for row in metrics if "validation_nats" in row]
    axes.errorbar(
        [row["step"] for row in held_out],
        [row["validation_nats"] for row in held_out],
        [row["validation_stderr"] for row in held_out],
        fmt="o-",
        color="black",
        ms=4,
        label="validation bound",
    )
    axes.set(xlabel="step", ylabel="nats per token", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(target, dpi=130)
    pyplot.close(figure)
