"""The command `variance`: the variance of a run's gradients, for several objectives."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from duality.cli.common import Device, Flag

Folders = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]


def variance(
    runs: Folders,
    /,
    objectives: str = "",
    draws: int = 400,
    batch: int | None = None,
    micro_batch: int = 0,
    groups: int = 20,
    step: str = "last",
    weights: Literal["model", "ema"] = "model",
    window: str = "",
    seed: int = 0,
    limit_seconds: float | None = None,
    corpus: str | None = None,
    out: Path = Path("runs/variance"),
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Measure the variance of the gradient and of the loss of runs, for several objectives on the same draws.

    Args:
        runs: run folders.
        objectives: names with commas, the first is compared with: plain, window (the curriculum with tau -> 0),
            tau=0.001, udlm, mdlm, own; each may have times: plain/log-linear, tau=0.01/polynomial. Those that fit the
            run if not given.
        draws: minibatches, each with fresh sequences, times and noise; a multiple of the groups.
        batch: sequences in a minibatch; the run's own batch size if not given.
        micro_batch: sequences at a time, to save memory; 0 is the whole minibatch. The result does not depend on it.
        groups: groups of draws for the jackknife; memory is 16 bytes for each weight and group.
        step: the last checkpoint, all that the run has kept, or some, with commas.
        weights: raw weights (model), at which training computes gradients, or averaged ones (ema).
        window: the range of alpha of window and tau, such as 0.05,0.95 (the paper's); the run's own if not given.
        seed: seed of sequences, times and noise.
        limit_seconds: take fewer draws if these would take longer.
        corpus: where the corpus of the runs is now, if it was moved.
        out: a folder for variance.json, variance.md and variance.png.
        device: where to compute.
        json: print the rows as JSON instead of the tables.
    """
    from duality.cli.console import counting_display, say
    from duality.files.atomic import json_text
    from duality.papers.duo.variance.study import VarianceSettings, measure_variance

    settings = VarianceSettings(
        objectives=tuple(part.strip() for part in objectives.split(",") if part.strip()),
        num_draws=draws,
        batch=batch,
        micro_batch=micro_batch,
        groups=groups,
        steps=steps_named(step),
        weights=weights,
        window=range_named(window),
        seed=seed,
        limit_seconds=limit_seconds,
    )
    show = partial(counting_display, "gradients")
    rows = measure_variance(runs, settings, out=out, device=device, corpus=corpus, report=say, show=show)
    print(json_text([row.to_json() for row in rows]) if json else (out / "variance.md").read_text(encoding="utf-8"))
    say(f"tables and figure are in {out}")
    return 0


def steps_named(text: str) -> Literal["last", "all"] | tuple[int, ...]:
    """The checkpoints that ``--step`` names."""
    if text == "last":
        return "last"
    if text == "all":
        return "all"
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--step is {text!r}: it is last, all, or steps with commas, such as 1000,2000") from None


def range_named(text: str) -> tuple[float, float] | None:
    """The range of alpha that ``--window`` names; None if it is not given."""
    if not text:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--window is {text!r}: it is two levels of alpha with a comma, such as 0.05,0.95") from None
    return low, high
