"""What a command shows on stderr: messages, and the progress of its work.

On a terminal progress is a bar. Elsewhere, such as in a log file, it is a line every 30 seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from duality.files import progress
from duality.files.progress import Advance, Pace, amount
from duality.samplers.generate import Frame
from duality.training.loop import StepRecord

stderr = Console(stderr=True, highlight=False)


class _Amount(ProgressColumn):
    """How much of a task is done."""

    def render(self, task: Task) -> Text:
        return Text(amount(task.completed, task.total or 0, str(task.fields.get("unit", ""))))


class _Note(ProgressColumn):
    """A task's own text."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("note", "")))


@dataclass
class Messages:
    """Prints messages, and shows work in progress (``duality.files.progress.Display``)."""

    bars: Progress | None = None

    def __call__(self, message: str) -> None:
        """Print a message."""
        stderr.print(message, soft_wrap=True, markup=False)

    @contextmanager
    def working(self, label: str, total: float, unit: str = "") -> Iterator[Advance]:
        """Work that is done in parts; what is yielded is called after each of them."""
        with self.shown() as show:
            pace = Pace(label, total, unit)
            show(pace, "")

            def advance(amount: float, tokens: int = 0) -> None:
                pace.add(amount, tokens)
                show(pace, "")

            yield advance

    @contextmanager
    def shown(self) -> Iterator[Callable[[Pace, str], None]]:
        """A function that shows a pace and a note: as a bar on a terminal, else as a line if one is due."""
        if not sys.stderr.isatty():
            yield self.print_line
            return
        with self.live() as bars:
            task = bars.add_task("", total=None, visible=False)

            def show(pace: Pace, note: str) -> None:
                notes = "  ".join(text for text in (note, pace.rate()) if text)
                bars.update(
                    task,
                    description=pace.label,
                    total=pace.total,
                    completed=pace.done,
                    visible=True,
                    note=notes,
                    unit=pace.unit,
                )

            try:
                yield show
            finally:
                bars.remove_task(task)

    def print_line(self, pace: Pace, note: str) -> None:
        """Print where the work is, if the last line is long enough ago."""
        if pace.due(progress.INTERVAL):
            self(pace.line(note))

    @contextmanager
    def live(self) -> Iterator[Progress]:
        """The bars of the terminal: there is one live display, and work inside other work adds a bar to it."""
        if self.bars is not None:
            yield self.bars
            return
        columns = (TextColumn("{task.description}"), BarColumn(), _Amount(), _Note(), TimeRemainingColumn())
        with Progress(*columns, console=stderr, transient=True) as self.bars:
            try:
                yield self.bars
            finally:
                self.bars = None


say = Messages()


@contextmanager
def training_display(steps: int) -> Iterator[Callable[[StepRecord], None]]:
    """The steps of a training, with loss, tokens per second and time left."""
    with say.shown() as shown:
        pace: Pace | None = None
        smooth = 0.0

        def show(record: StepRecord) -> None:
            nonlocal pace, smooth
            if pace is None:
                # The work begins with the first step of this call, so that neither reading the corpus nor steps that
                # were taken before count as speed.
                pace, smooth = Pace("training", steps, "steps", record.step), record.loss
            else:
                pace.add(record.step - pace.done, record.num_tokens)
                smooth += 0.05 * (record.loss - smooth)
            shown(pace, f"{record.phase} loss {smooth:.3f}")

        yield show


@contextmanager
def counting_display(label: str, total: float, unit: str = "") -> Iterator[Advance]:
    """Work that is counted; what is yielded is called with the amount that was done since the last call."""
    with say.working(label, total, unit) as advance:
        yield advance


@contextmanager
def sampling_display(batches: int) -> Iterator[Callable[[Frame], None]]:
    """The steps of all batches of samples."""
    with say.shown() as shown:
        pace: Pace | None = None

        def show(frame: Frame) -> None:
            nonlocal pace
            if pace is None:
                pace = Pace("sampling", frame.steps * batches, "steps")
            pace.add(min(1, frame.step))  # step 0 is the start
            shown(pace, "")

        yield show
