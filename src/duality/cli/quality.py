"""Measure the samples of runs with an external judge, and draw the measures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from duality.cli.common import Device, Flag
from duality.samplers import GRIDS, SAMPLERS

if TYPE_CHECKING:
    from duality.runs.sweep_runs import Rounds

Folders = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
Tables = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TABLE ...")]
Samplers = Annotated[
    str, tyro.conf.arg(help=f"the model's own or others, with commas: {', '.join(('own', *SAMPLERS))}.")
]
GridName = Annotated[
    str | None, tyro.conf.arg(help=f"{', '.join(GRIDS)}; the one that suits the sampler if not given.")
]


@dataclass(frozen=True)
class Shared:
    """What the samples of all cases have in common."""

    num: int = 64
    """samples of each kind."""
    length: int | None = None
    """tokens of a sample; the length the run was trained on if not given."""
    eta: float | None = None
    """the strength of a psi sampler."""
    grid: GridName = None
    """the times of the steps."""
    top_p: float = 1.0
    """draw from the fewest tokens that hold this share of the belief."""
    temperature: float = 1.0
    """below 1 sharpens the belief, above 1 flattens it."""
    seed: int = 0
    """the same seed gives the same samples."""


_DEFAULT = Shared()


def quality(
    runs: Folders,
    /,
    steps: str = "8,16,32,64",
    sampler: Samplers = "own",
    tail: str = "ancestral",
    rounds: str = "last",
    judge: str = "smollm2",
    shared: Annotated[Shared, tyro.conf.arg(name="")] = _DEFAULT,
    out: Path = Path("runs/quality"),
    batch_size: int = 16,
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Measure the samples of runs with an external judge; samples and scores that are kept in OUT are used again.

    Args:
        runs: run folders.
        steps: network calls for each sample, several with commas; "own" is the model's own number, such as one per
            token for an autoregressive model.
        sampler: the model's own or others, with commas.
        tail: the last step draws (ancestral) or takes the most likely tokens (greedy); both with a comma.
        rounds: of distilled runs the last round, all, or some, with commas; 0 is the model before distillation.
        judge: smollm2 (fetched), a .gguf file, a Hugging Face folder or name (gpt2-large is the paper's), or none.
        shared: what all samples have in common.
        out: a folder for samples, scores, the table (quality.json, quality.md) and the figures.
        batch_size: samples at a time; the result does not depend on it.
        device: where to compute.
        json: print the rows as JSON instead of the table.
    """
    from functools import partial
    from json import dumps

    from duality.cli.console import counting_display, say
    from duality.runs.sweep_runs import SweepSettings, measure_runs

    settings = SweepSettings(
        steps=tuple(None if word == "own" else whole(word, "--steps") for word in words(steps)),
        samplers=words(sampler),
        tails=words(tail),
        rounds=rounds_named(rounds),
        **asdict(shared),
    )
    reader, show = None if judge == "none" else judge, partial(counting_display, "sampling")
    rows = measure_runs(
        runs, settings, judge=reader, out=out, device=device, batch_size=batch_size, report=say, show=show
    )
    print(dumps([row.to_json() for row in rows]) if json else (out / "quality.md").read_text(encoding="utf-8"))
    say(f"samples, scores, tables and figures are in {out}")
    return 0


def plot(tables: Tables, /, out: Path = Path("quality.png"), rounds: Path | None = None) -> int:
    """Draw what `duality quality` measured, from one or several of its folders or quality.json, and print the table.

    Args:
        tables: folders of `duality quality`, or quality.json files.
        out: the figure against steps.
        rounds: a figure against rounds of distillation as well.
    """
    from duality.evaluation.figures import draw
    from duality.evaluation.sweep import read_rows
    from duality.evaluation.tables import markdown

    if not tables:
        raise ValueError("nothing to draw: name folders that `duality quality --out` made")
    rows = read_rows(tables)
    draw(rows, out, rounds)
    print(markdown(rows))
    return 0


def words(text: str) -> tuple[str, ...]:
    """The words between commas."""
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise ValueError(f"{text!r} names nothing: write one or several, with commas between")
    return found


def rounds_named(text: str) -> Rounds:
    """The last round, all of them, or some by number."""
    if text == "last":
        return "last"
    if text == "all":
        return "all"
    return tuple(whole(word, "--rounds") for word in words(text))


def whole(word: str, flag: str) -> int:
    """A word as a whole number."""
    if not word.isdecimal():
        raise ValueError(f"{flag} {word!r}: write whole numbers, with commas between")
    return int(word)
