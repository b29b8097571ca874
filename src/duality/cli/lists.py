"""The command `recipes`: list them with their size and source, or the rows of a table of the paper with theirs."""

from __future__ import annotations

import sys
from typing import Annotated

import tyro


def recipes(table: Annotated[int | None, tyro.conf.arg(metavar="N")] = None) -> int:
    """List the recipes, or the rows of a table of the paper with their recipes and commands.

    Args:
        table: a table of the paper by its number: its rows, the recipe of each, the paper's numbers and the commands
            that give ours.
    """
    from rich.console import Console
    from rich.table import Table

    from duality.runs.recipe_list import listed

    if table is not None:
        show_table(table)
        return 0
    shown = Table("recipe", "parameters", "steps x batch x length", "summary", "source", box=None)
    for row in listed():
        size = f"{row.steps:,} x {row.batch_size} x {row.length}"
        shown.add_row(row.name, f"{row.parameters / 1e6:.1f} M", size, row.summary, row.source)
    Console(width=None if sys.stdout.isatty() else 160).print(shown)
    return 0


def show_table(number: int) -> None:
    """Print a table of the paper: rows, recipes, numbers, commands."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from duality.papers.duo.index import table as table_numbered
    from duality.papers.duo.page import column_lines, paper_lines

    chosen = table_numbered(number)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    print(f"Table {number} of the paper: {chosen.title}\n")
    heading, lines = paper_lines(chosen)
    tables = [(heading, lines)] if chosen.by_rows else [(heading, lines), (["columns", "recipe"], column_lines(chosen))]
    for names, rows in tables:
        shown = Table(*names, box=None)
        for row in rows:
            shown.add_row(*map(escape, row))
        console.print(shown)
        print()
    for each in chosen.series:
        where = each.model if each.row is None else f"row {each.row + 1}, {each.model}"
        print(f"{where}: {', '.join(chosen.columns[column] for column in each.columns)}")
        print("\n".join(f"  {command}" for command in each.commands))
