"""The command `recipes`: list them with their size and source."""

from __future__ import annotations

import sys


def recipes() -> int:
    """List the recipes."""
    from rich.console import Console
    from rich.table import Table

    from duality.recipes.catalogue import RECIPES
    from duality.runs.describe import parameters

    table = Table("recipe", "parameters", "steps x batch x length", "summary", "source", box=None)
    for name, make in RECIPES.items():
        chosen = make()
        training = chosen.training
        size = f"{training.steps:,} x {training.batch_size} x {chosen.data.length}"
        table.add_row(name, f"{parameters(chosen)[0] / 1e6:.1f} M", size, chosen.summary, chosen.source)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0
