"""The command `runs`: the run folders below a directory, how far each is, and which are being trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from duality.cli.common import Flag

if TYPE_CHECKING:
    from duality.runs.listing import RunOverview

Directory = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]


def runs(directory: Directory = Path("runs"), /, json: Flag = False) -> int:
    """List the runs below a directory: recipe, step, last validation likelihood, size, age and state.

    Args:
        directory: a folder that holds run folders, at any depth.
        json: print a JSON list instead of the table.
    """
    from dataclasses import asdict
    from json import dumps

    from rich.console import Console
    from rich.table import Table

    from duality.runs.listing import overviews

    found = overviews(directory.expanduser())
    if json:
        print(dumps([asdict(each) for each in found], indent=1))
        return 0
    if not found:
        print(f"no run below {directory}")
        return 0
    table = Table("run", "recipe", "step", "validation nats", "size", "age", "state", box=None)
    for each in found:
        table.add_row(*cells(each))
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table)
    return 0


def cells(run: RunOverview) -> list[str]:
    """A row of the table."""
    from rich.markup import escape

    step = "–" if run.step is None else f"{run.step:,}"
    nats = "–" if run.validation_nats is None else f"{run.validation_nats:.4f}"
    state = f"{run.state} ({run.holder or run.problem})" if run.holder or run.problem else run.state
    texts = [run.run, run.recipe or "–", step if run.steps is None else f"{step} of {run.steps:,}", nats]
    return [escape(text) for text in (*texts, size(run.bytes), age(run.age), state)]


def size(number: float) -> str:
    """Bytes in words.

    >>> size(900), size(1_500_000), size(3.2e9)
    ('1 kB', '1.5 MB', '3.2 GB')
    """
    if number < 1e6:
        return f"{max(number / 1e3, 1):.0f} kB"
    return f"{number / 1e6:.1f} MB" if number < 1e9 else f"{number / 1e9:.1f} GB"


def age(seconds: float) -> str:
    """Seconds in words.

    >>> age(3), age(200), age(10_000), age(500_000)
    ('3 s', '3 min', '2.8 h', '5.8 days')
    """
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86_400 else f"{seconds / 86_400:.1f} days"
