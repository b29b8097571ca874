"""When the ranks of a job look whether one of them was asked to stop: rarely, and soon enough."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

import pytest

from duality.ranks import Job
from duality.runs import session


@dataclass(frozen=True)
class _TwoRanks(Job):
    """A job whose other rank says what is in ``says``; ``messages`` are what this one said."""

    says: list[int] = field(default_factory=lambda: [0])
    messages: list[int] = field(default_factory=list)

    def largest(self, number: int) -> int:
        self.messages.append(number)
        return max(number, self.says[0])


def test_ranks_look_about_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 20 ms: a look after each step first, and then one in 25 steps, or as few as the slowest rank needs."""
    now, job = [100.0], _TwoRanks(size=2)
    monkeypatch.setattr(session, "job", lambda: job)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    control, looks = session._Control([], 40, 100.0), list[int]()

    def take(steps: range) -> int:
        for step in steps:
            now[0] += 0.02
            before = len(job.messages)
            stop = control.signal_after(step)
            if len(job.messages) > before:
                looks.append(step)
            if stop:
                return stop
        return 0

    assert take(range(41, 100)) == 0
    assert looks == [41, 66, 91]
    job.says[0] = session._MOST_STEPS - 10  # the other one is slower
    assert take(range(100, 140)) == 0
    assert looks == [41, 66, 91, 116, 126, 136]
    job.says[0] = signal.SIGTERM * session._MOST_STEPS  # and is asked to stop
    assert take(range(140, 200)) == signal.SIGTERM
    assert looks[-1] == 146


def test_a_signal_of_this_rank_is_told_and_a_slow_step_is_looked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    now, job = [0.0], _TwoRanks(size=2)
    monkeypatch.setattr(session, "job", lambda: job)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    request: list[int] = []
    control = session._Control(request, 0, 0.0)
    for step in range(1, 5):
        now[0] += 3.0
        assert control.signal_after(step) == 0
    assert len(job.messages) == 4
    request.append(signal.SIGINT)
    assert control.signal_after(5) == signal.SIGINT


def test_a_process_that_is_alone_stops_after_every_step() -> None:
    request: list[int] = []
    control = session._Control(request, 0, 0.0)
    assert control.signal_after(1) == 0
    request.append(signal.SIGTERM)
    assert control.signal_after(2) == signal.SIGTERM
