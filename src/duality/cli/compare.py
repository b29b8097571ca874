"""Train several recipes and measure them alike."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from duality.cli.common import Assignments, Device, pick
from duality.runs import folder


def compare(
    recipes: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE ...")],
    /,
    out: Path = Path("runs/compare"),
    data: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    assignments: Assignments = (),
    draws: int = 4,
    limit: int | None = None,
    judge: str | None = None,
    samples: int = 64,
    sample_steps: int | None = None,
    device: Device = "auto",
) -> int:
    """Train several recipes, measure them alike and print one table; continues what is there.

    Args:
        recipes: names that `duality recipes` lists.
        out: a folder for the runs and the table (table.json, table.md).
        data: a text file, a folder of text, or a named source, for all of them.
        steps: number of training steps of each.
        seed: seed of weights, data order and noise of each.
        assignments: change a field of every recipe, such as --set backbone=nano; can be repeated.
        draws: draws of time and noise for each sequence that is measured.
        limit: measure on so many sequences only.
        judge: an external language model that reads samples: smollm2 (fetched), a .gguf file, a Hugging Face folder or
            name. Adds columns.
        samples: how many samples the judge reads.
        sample_steps: network calls for each sample, where the model leaves the choice.
        device: where to compute.
    """
    from rich.console import Console
    from rich.table import Table

    from duality.cli.console import say, training_display
    from duality.evaluation.judge import load_judge
    from duality.recipes.catalogue import modified
    from duality.recipes.catalogue import recipe as find
    from duality.runs.comparison import Plan, cells, headers
    from duality.runs.comparison import compare as compare_recipes

    if not recipes:
        raise ValueError(
            "nothing to compare: name recipes, such as mdlm-laptop duo-laptop; `duality recipes` lists them"
        )
    shorthand = {"training.steps": steps, "training.seed": seed}
    changes = [f"{field}={value}" for field, value in shorthand.items() if value is not None]
    chosen = [modified(find(name), (*changes, *assignments)) for name in recipes]
    chosen = [folder.with_corpus(each, data or each.data.corpus) for each in chosen]
    reader = None if judge is None else load_judge(judge, pick(device), say)
    plan = Plan(out, draws, limit, reader, samples, sample_steps, pick(device))
    rows, remarks = compare_recipes(chosen, plan, say, lambda each: training_display(each.training.steps))
    table = Table(*headers(rows), box=None)
    for row in rows:
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for line in remarks:
        print(line)
    return 0 if len(rows) == len(chosen) else 130
