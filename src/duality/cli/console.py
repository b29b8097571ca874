"""What the terminal shows: progress on stderr while work is long, nothing but results when nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from duality.training.loop import StepRecord

stderr = Console(stderr=True, highlight=False)


class _Field(ProgressColumn):
    """A task's own text."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("note", "")))


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        _Field(),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=not sys.stderr.isatty(),
    )


@contextmanager
def training_display(steps: int) -> Iterator[Callable[[StepRecord], None]]:
    """A bar with loss, tokens per second and time left."""
    with _progress() as progress:
        tokens, smooth, clock = 0, 0.0, 0.0

        def show(record: StepRecord) -> None:
            nonlocal tokens, smooth, clock
            if not progress.tasks:
                # The bar begins with the first step of this sitting, so that neither reading the corpus nor steps
                # taken before a resume count as speed.
                progress.add_task("training", total=steps, completed=record.step, note="")
                smooth, clock = record.loss, time.monotonic()
                return
            tokens += record.num_tokens
            smooth += 0.05 * (record.loss - smooth)
            rate = tokens / (time.monotonic() - clock)
            note = f"{record.phase} loss {smooth:.3f}  {rate:,.0f} tokens/s"
            progress.update(progress.task_ids[0], completed=record.step, note=note)

        yield show


@contextmanager
def counting_display(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that is told how much more is done."""
    with _progress() as progress:
        task = progress.add_task(label, total=total, note="")
        yield lambda count: progress.advance(task, count)


def say(message: str) -> None:
    """A line for people, on stderr."""
    stderr.print(message, soft_wrap=True, markup=False)
