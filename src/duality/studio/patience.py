"""When work ends early: its client has left, the studio is being closed, or it has taken too long.

A computation asks at every call of its network, so that one that has no steps to watch, such as a likelihood, ends as
soon as one that has.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from duality.studio.limits import Cancelled, Refusal


@dataclass(frozen=True)
class Patience:
    """How long work may go on."""

    deadline: float
    cancelled: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise an error if the work is to end."""
        if self.cancelled.is_set():
            raise Cancelled
        if self.closing.is_set():
            raise Refusal(503, "the studio is being closed: start it again")
        if time.monotonic() > self.deadline:
            raise Refusal(503, "the request took too long: ask for fewer steps, samples, draws or tokens")
