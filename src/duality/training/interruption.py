"""Signals that end training between two steps, so that the last step can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

SignalHandler = Callable[[int, FrameType | None], Any] | int | None


@dataclass
class Interruption:
    """The signal that came, SIGINT (Ctrl-C) or SIGTERM; 0 if none did. The loop reads it between steps."""

    signal: int = 0


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second one acts as usual."""
    request, previous = Interruption(), dict[int, SignalHandler]()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def ask(number: int, _frame: FrameType | None) -> None:
        request.signal = number
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, ask)
    try:
        yield request
    finally:
        restore()
