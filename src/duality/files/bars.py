"""Work in progress as bars: on a terminal, in a cell of a notebook; elsewhere as lines (``progress``).

    with working(Bars(print), "encoding", total=98_000_000, unit="bytes") as advance: ...

A terminal has one live display, to which work inside other work, or in another thread, adds a bar. A cell has an output
for each piece of work. What must hold: nothing is shown where stderr is no terminal and there is no notebook, and rich
is imported only where a bar is shown; what was shown goes away with the work, also if that fails.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, cast

from duality.files.progress import Pace, Reporter, Show, report_line

if TYPE_CHECKING:
    from IPython.display import DisplayHandle
    from rich.console import Console
    from rich.progress import Progress, TaskID

_DELAY = 0.5  # seconds, so that short calls show nothing
_PER_SECOND = 4  # changes of a bar in a notebook
_lock = threading.RLock()
_live: list[Progress] = []  # the display of the terminal, while there is one


def _make_console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


def _is_seen() -> bool:
    """Whether there is somebody who can see a bar."""
    return _in_notebook() or sys.stderr.isatty()


@dataclass(frozen=True)
class Bars:
    """A reporter of messages that shows work which takes longer than ``delay`` seconds as bars, on a ``console``."""

    report: Reporter
    console: Callable[[], Console] = _make_console
    delay: float = 0.0

    @staticmethod
    def beside(report: Reporter, wanted: bool = True) -> Reporter:
        """The reporter with bars beside its messages, if they are wanted and there is somebody to see them."""
        return Bars(report, delay=_DELAY) if wanted and _is_seen() else report

    def __call__(self, message: str) -> None:
        self.report(message)

    @contextmanager
    def showing(self) -> Iterator[Show]:
        """A function that shows a pace and a note."""
        if not _is_seen():
            yield partial(report_line, self)
            return
        bar, began = _CellBar() if _in_notebook() else _TerminalBar(self.console), time.monotonic()

        def show(pace: Pace, note: str) -> None:
            if time.monotonic() - began >= self.delay:
                bar.show(pace, note)

        try:
            yield show
        finally:
            bar.close()


class _TerminalBar:
    """A bar of the live display, which is there as long as it has bars."""

    def __init__(self, console: Callable[[], Console]):
        self.console, self.task = console, cast("TaskID | None", None)

    def show(self, pace: Pace, note: str) -> None:
        """Move the bar; the first call adds it."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        amount, notes = pace.amount(), "  ".join(filter(None, (note, pace.rate())))
        with _lock:
            if not _live:
                fields = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("amount", "note"))
                columns = (TextColumn("{task.description}"), BarColumn(), *fields, TimeRemainingColumn())
                # what is printed into a file or a pipe meanwhile belongs there
                printed, console = sys.stdout.isatty(), self.console()
                _live.append(Progress(*columns, console=console, transient=True, redirect_stdout=printed))
            if self.task is None:
                self.task = _live[0].add_task(pace.label, total=pace.total, amount=amount, note=notes)
            _live[0].update(self.task, total=pace.total, completed=pace.done, amount=amount, note=notes)
            _live[0].start()  # which does nothing if it was

    def close(self) -> None:
        """Remove the bar, and with the last one the display."""
        with _lock:
            if self.task is not None:
                _live[0].remove_task(self.task)
                if not _live[0].tasks:
                    _live.pop().stop()


class _CellBar:
    """A bar in an output of a cell; ``ipywidgets``, which rich needs for it, may not be there."""

    handle: DisplayHandle | None = None
    shown = 0.0

    def show(self, pace: Pace, note: str) -> None:
        """Draw the bar."""
        now = time.monotonic()
        if now - self.shown >= 1 / _PER_SECOND:
            self.shown, line = now, pace.line(note)
            share = f'value="{pace.done}" max="{pace.total}"' if pace.total else ""
            self._draw({"text/plain": line, "text/html": f"<progress {share}></progress> {escape(line)}"})

    def _draw(self, content: dict[str, str]) -> None:
        """Show this in the output."""
        from IPython.display import display

        if self.handle is None:
            self.handle = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self.handle.update(content, raw=True)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Leave an empty output."""
        if self.handle is not None:
            self._draw({"text/plain": "", "text/html": ""})
