"""The commands `recipes`, `runs` and `consolidate`: what there is, and how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from duality.cli.console import print_table, say
from duality.cli.options import Flag, Folder, Step
from duality.files.atomic import readable_size

if TYPE_CHECKING:
    from duality.runs.listing import RunOverview

Directory = Annotated[Path, Positional, arg(metavar="DIR")]


def recipes(table: Annotated[int | None, arg(metavar="N")] = None) -> int:
    """List the recipes, or the rows of a table of the paper with their recipes and commands.

    Args:
        table: a table of the paper by its number: its rows, the recipe of each, the paper's numbers and the commands
            that give ours.
    """
    from duality.runs.listing import list_recipes

    if table is not None:
        from duality.cli.papers import show_table

        show_table(table)
        return 0
    rows = []
    for each in list_recipes():
        size, steps = f"{each.parameters / 1e6:.1f} M", f"{each.steps:,} x {each.batch_size} x {each.length}"
        rows.append((each.name, size, steps, each.summary, each.source))
    print_table(("recipe", "parameters", "steps x batch x length", "summary", "source"), rows)
    return 0


def runs(directory: Directory = Path("runs"), /, json: Flag = False) -> int:
    """List the runs below a directory: recipe, step, last validation likelihood, size, age and state.

    Args:
        directory: a folder that holds run folders, at any depth.
        json: print a JSON list instead of the table.
    """
    from dataclasses import asdict
    from json import dumps

    from duality.runs.listing import overviews

    found = overviews(directory.expanduser())
    if json:
        print(dumps([asdict(each) for each in found], indent=1))
    elif found:
        print_table(("run", "recipe", "step", "validation nats", "size", "age", "state"), map(_cells, found))
    else:
        print(f"no run below {directory}")
    return 0


def consolidate(run: Folder, /, kept_step: Step = None) -> int:
    """Put the parts of a checkpoint together that were saved with training.checkpoint=sharded.

    Args:
        run: the run folder.
        kept_step: the checkpoint of this training step instead of the newest.
    """
    from duality.runs.session import consolidate as put_together

    print(f"{put_together(run, kept_step, say)} has whole files now")
    return 0


def _cells(run: RunOverview) -> list[str]:
    """A row of the table of runs."""
    step = "–" if run.step is None else f"{run.step:,}"
    nats = "–" if run.validation_nats is None else f"{run.validation_nats:.4f}"
    state = f"{run.state} ({run.holder or run.problem})" if run.holder or run.problem else run.state
    steps = step if run.steps is None else f"{step} of {run.steps:,}"
    return [run.run, run.recipe or "–", steps, nats, readable_size(run.bytes), _age_in_words(run.age), state]


def _age_in_words(seconds: float) -> str:
    """A time with its unit.

    >>> _age_in_words(3), _age_in_words(200), _age_in_words(10_000), _age_in_words(500_000)
    ('3 s', '3 min', '2.8 h', '5.8 days')
    """
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86_400 else f"{seconds / 86_400:.1f} days"
