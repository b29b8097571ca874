"""SIGTERM as an exception: a command that is ended cleans up as after Ctrl-C.

A training handles the signal itself (``training.interruption``) and saves. What must hold: within ``terminable`` the
signal raises ``Terminated`` in the main thread, through every ``finally``; afterwards the signal does what it did
before.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """SIGTERM came. It is no ``Exception``: like Ctrl-C, it is not an error that a command could handle."""


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise ``Terminated``; a process that was told to ignore the signal goes on ignoring it."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before == signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
