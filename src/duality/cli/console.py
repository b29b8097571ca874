"""What the terminal shows: progress bars and messages on stderr. Without a terminal there are no bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from duality.samplers.generate import Frame
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
                # The bar begins with the first step of this call, so that neither reading the corpus nor steps that
                # were taken before count as speed.
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
def counting_display(label: str, total: float) -> Iterator[Callable[[float], None]]:
    """A bar; what is yielded is called with the amount of work that was done since the last call."""
    with _progress() as progress:
        task = progress.add_task(label, total=total, note="")
        yield lambda count: progress.advance(task, count)


@contextmanager
def sampling_display(batches: int) -> Iterator[Callable[[Frame], None]]:
    """A bar over the steps of all batches of samples."""
    with _progress() as progress:

        def show(frame: Frame) -> None:
            if not progress.tasks:
                progress.add_task("sampling", total=frame.steps * batches, note="")
            progress.advance(progress.task_ids[0], min(1, frame.step))  # step 0 is the start

        yield show


def say(message: str) -> None:
    """Print a message on stderr."""
    stderr.print(message, soft_wrap=True, markup=False)
