"""When work ends early: its client has left, the studio is being closed, or it has taken too long.

A computation asks at every call of its network, so that one that has no steps to watch, such as a likelihood, ends as
soon as one that has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from duality.noise import Noise
from duality.protocols import Latent, Network
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


@contextmanager
def interruptible(network: Network, patience: Patience) -> Iterator[None]:
    """Ask at every call of the network whether to go on, for the duration of a ``with`` block."""
    hidden = network.hidden

    def asked(
        z: Latent,
        condition: Tensor,
        valid: Tensor | None = None,
        dropout: Noise | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        patience.check()
        return hidden(z, condition, valid, dropout, labels)

    own = vars(network).get("hidden")  # not None inside another such block
    vars(network)["hidden"] = asked
    try:
        yield
    finally:
        if own is None:
            del vars(network)["hidden"]
        else:
            vars(network)["hidden"] = own
