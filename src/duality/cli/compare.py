"""Train several recipes and measure them in the same manner."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from duality.cli.common import Assignments, Column, Device

if TYPE_CHECKING:
    from duality.evaluation.compare import ComparedRecipe


def compare(
    recipes: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE ...")],
    /,
    out: Path = Path("runs/compare"),
    data: str | None = None,
    column: Column = None,
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
    """Train several recipes, measure them in the same manner and print one table; an earlier comparison is continued.

    Args:
        recipes: names that `duality recipes` lists.
        out: a folder for the runs and the table (table.json, table.md).
        data: a text file, a .jsonl, .csv or .tsv file, a folder of them, or a named source, for all of them.
        column: where the text is: the key of a .jsonl file, the column of a .csv or .tsv file; text if not given.
        steps: number of training steps of each.
        seed: seed of weights, data order and noise of each.
        assignments: change a field of every recipe, such as --set backbone=nano; can be repeated.
        draws: draws of time and noise for each sequence that is measured.
        limit: measure on this many sequences only.
        judge: a language model that reads samples: smollm2 (fetched), a .gguf file, a Hugging Face folder or name, or
            the folder of an autoregressive run. Adds columns.
        samples: how many samples the judge reads.
        sample_steps: network calls for each sample, where the model leaves the choice.
        device: where to compute.
    """
    from duality.cli.console import say, training_display
    from duality.evaluation.compare import Plan
    from duality.evaluation.compare import compare as compare_recipes
    from duality.evaluation.judging import judge_named
    from duality.files.atomic import no_empty_folder
    from duality.models.folder import with_column, with_corpus
    from duality.recipes.catalogue import recipe as find
    from duality.training.devices import device_named

    if not recipes:
        raise ValueError(
            "nothing to compare: name recipes, such as mdlm-laptop duo-laptop; `duality recipes` lists them"
        )
    shorthand = {"training.steps": steps, "training.seed": seed}
    changes = [f"{field}={value}" for field, value in shorthand.items() if value is not None]
    chosen = [find(name, (*changes, *assignments)) for name in recipes]
    chosen = [with_corpus(each, each.data.corpus if data is None else data) for each in chosen]
    chosen = [with_column(each, column) for each in chosen]
    where = device_named(device)
    plan = Plan(out, draws, limit, None, samples, sample_steps, where)
    if judge is not None:
        plan = replace(plan, judge=judge_named(judge, where, say))
    with no_empty_folder(out):
        rows, remarks = compare_recipes(chosen, plan, say, lambda each: training_display(each.training.steps))
    print_rows(rows, remarks)
    return 0 if len(rows) == len(chosen) else 130


def print_rows(rows: Sequence[ComparedRecipe], remarks: Sequence[str]) -> None:
    """Print the table and its remarks; as wide as the terminal, or 160 columns."""
    from rich.console import Console
    from rich.table import Table

    from duality.evaluation.compare import cells, headers

    table = Table(*headers(rows), box=None)
    for row in rows:
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for line in remarks:
        print(line)
