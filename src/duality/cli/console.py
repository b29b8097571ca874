"""What a command shows: messages and the progress of its work on stderr, tables on stdout.

On a terminal progress is a bar. Elsewhere, such as in a log file, it is a line every 30 seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from duality.files.progress import Pace, Show, report_line
from duality.registry import visible

if TYPE_CHECKING:
    from duality.training.loop import StepRecord


class _Console(Console):
    """A console that leaves the error of a closed pipe to the command line; that of rich ends with exit code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled."""
        raise


stderr = _Console(stderr=True, highlight=False)


@dataclass
class _Messages:
    """Prints messages, and shows work in progress (``duality.files.progress._Display``)."""

    bars: Progress | None = None

    def __call__(self, message: str) -> None:
        """Print a message."""
        stderr.print(visible(message, kept="\n\t"), soft_wrap=True, markup=False)

    @contextmanager
    def showing(self) -> Iterator[Show]:
        """A function that shows a pace and a note: as a bar on a terminal, else as a line if one is due.

        There is one live display on a terminal: work inside other work adds a bar to it.
        """
        if not sys.stderr.isatty():
            yield partial(report_line, self)
            return
        texts = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("amount", "note"))
        columns = (TextColumn("{task.description}"), BarColumn(), *texts, TimeRemainingColumn())
        outer, bars = self.bars, self.bars or Progress(*columns, console=stderr, transient=True)
        task = bars.add_task("", total=None, visible=False, amount="", note="")

        def move_bar(pace: Pace, note: str) -> None:
            notes = "  ".join(filter(None, (note, pace.rate())))
            bars.update(task, total=pace.total, completed=pace.done, description=pace.label, visible=True)
            bars.update(task, amount=pace.amount(), note=notes)

        self.bars = bars
        try:
            with nullcontext() if outer else bars:
                yield move_bar
        finally:
            bars.remove_task(task)
            self.bars = outer


say = _Messages()


@contextmanager
def show_training(steps: int) -> Iterator[Callable[[StepRecord], None]]:
    """The steps of a training, with loss, tokens per second and time left."""
    with say.showing() as show:
        pace: Pace | None = None
        smooth = 0.0

        def show_step(record: StepRecord) -> None:
            nonlocal pace, smooth
            if pace is None:
                # The work begins with the first step of this call, so that neither reading the corpus nor steps that
                # were taken before count as speed.
                pace, smooth = Pace("training", steps, "steps", record.step), record.nats_per_token
            else:
                pace.add(record.step - pace.done, record.num_tokens)
                smooth += 0.05 * (record.nats_per_token - smooth)
            show(pace, f"{record.phase} loss {smooth:.3f}")

        yield show_step


def print_table(names: Iterable[str], rows: Iterable[Iterable[str]], width: int = 160) -> None:
    """Print a table on stdout; as wide as the terminal, or ``width`` columns elsewhere."""
    table = Table(*map(visible, names), box=None)
    for row in rows:
        table.add_row(*(escape(visible(cell, kept="\n")) for cell in row))
    _Console(width=None if sys.stdout.isatty() else width, highlight=False).print(table)
