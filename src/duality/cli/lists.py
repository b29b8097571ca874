"""The command `recipes`: list them with their size and source."""

from __future__ import annotations

import sys


def recipes() -> int:
    """List the recipes."""
    from rich.console import Console
    from rich.table import Table

    from duality.runs.listing import listed

    table = Table("recipe", "parameters", "steps x batch x length", "summary", "source", box=None)
    for row in listed():
        size = f"{row.steps:,} x {row.batch_size} x {row.length}"
        table.add_row(row.name, f"{row.parameters / 1e6:.1f} M", size, row.summary, row.source)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0
