"""Progress of long work: how much of it is done, at what rate, and how long the rest takes.

    with working(report, "encoding", total=98_000_000, unit="bytes") as advance:
        advance(1_000_000, tokens=310_000)

A reporter that is a ``_Display`` shows the work as it likes, such as a bar on a terminal. Every other one is called
with a line every ``INTERVAL`` seconds:

    encoding: 12.3 of 98.0 MB (13 %), 510,000 tokens/s, 2:10 left

The first one comes after 5 seconds if the rest takes more than 5 minutes. What must hold: work that takes less than 30
seconds at its rate so far reports no line; a line is made from what is done so far alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

INTERVAL = 30.0  # seconds between two lines
_EARLY, _LONG = 5.0, 300.0  # seconds before the first line, where so many are left

Reporter = Callable[[str], None]  # called with each message for the user


def silent(message: str) -> None:
    """A reporter that shows nothing."""


class Advance(Protocol):
    """Called with the amount of work, and the number of tokens in it, that was done since the last call."""

    def __call__(self, amount: float, tokens: int = 0) -> None: ...


@dataclass
class Pace:
    """What is known of work in progress: how much is done, since when, and how many tokens were in it.

    ``done`` may begin above 0: a training that is resumed. Only what is added counts for the rate.
    """

    label: str
    total: float
    unit: str
    done: float = 0.0
    tokens: int = 0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.started = self.shown = self.clock()
        self.first = self.done

    def add(self, amount: float, tokens: int = 0) -> None:
        """Count work that was done."""
        self.done += amount
        self.tokens += tokens

    def amount(self) -> str:
        """How much is done of how much.

        >>> Pace("", 98_000_000, "bytes", done=12_300_000).amount(), Pace("", 2600, "steps", done=120).amount()
        ('12.3 of 98.0 MB', '120 of 2,600 steps')
        """
        if self.unit == "bytes":
            return f"{self.done / 1e6:.1f} of {self.total / 1e6:.1f} MB"
        return f"{self.done:,.0f} of {self.total:,.0f} {self.unit}".rstrip()

    def rate(self) -> str:
        """The tokens per second, if there are any."""
        elapsed = self.clock() - self.started
        return f"{self.tokens / elapsed:,.0f} tokens/s" if self.tokens and elapsed > 0 else ""

    def seconds_left(self) -> float | None:
        """The time that the rest takes at the rate so far; None if nothing is done."""
        added, elapsed = self.done - self.first, self.clock() - self.started
        return (self.total - self.done) * elapsed / added if added > 0 else None

    def line(self, note: str = "") -> str:
        """All of it, with a note if there is one, and the time that the rest takes at the rate so far."""
        share = f" ({self.done / self.total:.0%})".replace("%", " %") if self.total else ""
        left = "" if (seconds := self.seconds_left()) is None else f"{_duration(seconds)} left"
        return ", ".join(filter(None, (f"{self.label}: {self.amount()}{share}", note, self.rate(), left)))


def _duration(seconds: float) -> str:
    """A time in minutes and seconds, in hours too, or in days.

    >>> _duration(130.4), _duration(7384), _duration(1e9)
    ('2:10', '2:03:04', '11,574 days')
    """
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours / 24:,.0f} days"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


Show = Callable[[Pace, str], None]  # called with work in progress and a note about it


@runtime_checkable
class _Display(Protocol):
    """A reporter of messages that can also show work in progress."""

    def __call__(self, message: str) -> None: ...
    def showing(self) -> AbstractContextManager[Show]: ...


def report_line(report: Reporter, pace: Pace, note: str) -> None:
    """Report a line of the work if some of it is done, and an interval has passed since the last line.

    The first line comes early if the rest takes minutes.
    """
    now = pace.clock()
    early = pace.shown == pace.started and (pace.seconds_left() or 0.0) >= _LONG
    if pace.done and now - pace.shown >= (min(_EARLY, INTERVAL) if early else INTERVAL):
        pace.shown = now
        report(pace.line(note))


def showing(report: Reporter) -> AbstractContextManager[Show]:
    """A function that shows a pace and a note, as the reporter can."""
    return report.showing() if isinstance(report, _Display) else nullcontext(partial(report_line, report))


@contextmanager
def working(report: Reporter, label: str, total: float, unit: str = "") -> Iterator[Advance]:
    """Show work that is done in parts, as the reporter can; what is yielded is called after each of them."""
    with showing(report) as show:
        pace = Pace(label, total, unit)
        show(pace, "")

        def advance(amount: float, tokens: int = 0) -> None:
            pace.add(amount, tokens)
            show(pace, "")

        yield advance


def unseen(amount: float, tokens: int = 0) -> None:
    """An ``Advance`` that shows nothing."""
