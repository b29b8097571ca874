"""How much one request may ask for, and how a request that asks for something else is answered.

What must hold: every limit that is crossed is named in the answer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The most that a request may ask for."""

    body: int = 1 << 18
    """bytes"""
    text: int = 20_000
    """characters of a prompt, a suffix, a text"""
    length: int = 2048
    """tokens of a sample"""
    steps: int = 4096
    samples: int = 16
    draws: int = 256
    queue: int = 16
    """requests that wait for one model"""
    models: int = 6
    """models that are kept in memory"""
    seconds: float = 300.0
    """of computing for one request"""
    body_seconds: float = 10.0
    """until a body must have arrived"""


class Refusal(Exception):
    """A request that is not answered: the status, and one sentence that says what is allowed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Cancelled(Exception):
    """Nobody waits for this work any more."""
