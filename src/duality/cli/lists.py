"""List recipes and corpora; fetch a corpus."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import tyro


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


def data(
    action: Annotated[Literal["list", "get"], tyro.conf.Positional], name: Annotated[str, tyro.conf.Positional] = "", /
) -> int:
    """List the named corpora, or fetch one into the cache and verify it.

    Args:
        action: list them, or get one.
        name: which one to get.
    """
    from duality.cli.console import say
    from duality.data.sources import DEFAULT_SOURCE, SOURCES, fetch

    if action == "get":
        for path in fetch(name or DEFAULT_SOURCE, progress=say):
            print(path)
        return 0
    for known, source in SOURCES.items():
        default = " (default)" if known == DEFAULT_SOURCE else ""
        print(f"{known}{default}: {source.title}. {source.license}.")
    return 0
