"""What a command shows: messages and the progress of its work on stderr, tables on stdout.

On a terminal progress is a bar. Elsewhere, such as in a log file, it is a line every 30 seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from duality.files.bars import Bars
from duality.registry import visible


class _Console(Console):
    """A console that leaves the error of a closed pipe to the command line; that of rich ends with exit code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled."""
        raise


stderr = _Console(stderr=True, highlight=False)


def _print_message(message: str) -> None:
    """Print a message."""
    stderr.print(visible(message, kept="\n\t"), soft_wrap=True, markup=False)


say = Bars(_print_message, lambda: stderr)


def print_table(names: Iterable[str], rows: Iterable[Iterable[str]], width: int = 160) -> None:
    """Print a table on stdout; as wide as the terminal, or ``width`` columns elsewhere."""
    table = Table(*map(visible, names), box=None)
    for row in rows:
        table.add_row(*(escape(visible(cell, kept="\n")) for cell in row))
    _Console(width=None if sys.stdout.isatty() else width, highlight=False).print(table)
