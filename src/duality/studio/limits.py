"""How much one request may ask for, and how a request that asks for something else is answered.

What must hold: every limit that is crossed is named in the answer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The most that a request may ask for, and that the studio keeps."""

    body: int = 1 << 18
    """bytes"""
    text: int = 20_000
    """characters of a prompt, a suffix, a text"""
    length: int = 2048
    """tokens of a sample; a model that was trained on longer ones writes these too"""
    steps: int = 4096
    samples: int = 16
    draws: int = 256
    rows: int = 10_000
    """logged steps in one answer"""
    queue: int = 16
    """requests that wait for one model"""
    models: int = 6
    """models that are kept in memory"""
    connections: int = 256
    """open at the same time"""
    backlog: int = 64
    """events of one request that its client has not read yet"""
    seconds: float = 300.0
    """of computing for one request"""
    waiting_seconds: float = 300.0
    """in the queue of a model"""
    body_seconds: float = 10.0
    """until a body must have arrived"""
    stalled_seconds: float = 20.0
    """in which a client reads nothing of what is waiting for it"""
    idle_seconds: float = 300.0
    """after which a thread without work ends"""


class Refusal(Exception):
    """A request that is not answered: the status, and one sentence that says what is allowed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Cancelled(Exception):
    """Nobody waits for this work any more."""


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())
