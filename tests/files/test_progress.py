"""Progress: a line every 30 seconds with amount, rate and time left; a reporter that has a display shows it itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from duality.files import progress
from duality.files.progress import Pace, Show, report_line, working


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_line_says_how_much_is_done_how_fast_and_how_long_the_rest_takes() -> None:
    clock = Clock()
    pace = Pace("encoding", 98_000_000, "bytes", clock=clock)
    assert pace.line() == "encoding: 0.0 of 98.0 MB (0 %)"
    clock.now += 40
    pace.add(24_500_000, tokens=8_000_000)
    assert pace.line() == "encoding: 24.5 of 98.0 MB (25 %), 200,000 tokens/s, 2:00 left"


def test_work_that_was_done_before_does_not_count_as_speed() -> None:
    clock = Clock()
    pace = Pace("training", 2600, "steps", done=2000, clock=clock)
    clock.now += 30
    pace.add(100)
    assert pace.line("loss 5.1") == "training: 2,100 of 2,600 steps (81 %), loss 5.1, 2:30 left"


def test_a_line_is_due_every_interval() -> None:
    clock = Clock()
    pace, messages, counts = Pace("x", 10, "", done=1, clock=clock), list[str](), list[int]()
    for _ in range(9):
        clock.now += 10
        report_line(messages.append, pace, "")
        counts.append(len(messages))
    assert counts == [0, 0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(("total", "counts"), [(61, [1, 1, 1, 1, 1, 1, 2]), (20, [0, 0, 0, 0, 0, 1, 1])])
def test_work_of_minutes_has_its_first_line_early(total: int, counts: list[int]) -> None:
    clock = Clock()
    pace, messages, found = Pace("x", total, "", clock=clock), list[str](), list[int]()
    for _ in range(7):
        clock.now += 5
        pace.add(0.5 if total > 60 else 1.0)
        report_line(messages.append, pace, "")
        found.append(len(messages))
    assert found == counts


def test_any_reporter_gets_lines_and_short_work_none(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    with working(messages.append, "encoding", 4e6, "bytes") as advance:
        advance(1e6)
        assert messages == []
        monkeypatch.setattr(progress, "INTERVAL", 0.0)
        advance(1e6)
    assert len(messages) == 1
    assert messages[0].startswith("encoding: 2.0 of 4.0 MB (50 %), 0:00 left")


def test_a_reporter_with_a_display_shows_the_work_itself() -> None:
    class Bars:
        def __init__(self) -> None:
            self.seen: list[object] = []

        def __call__(self, message: str) -> None:
            self.seen.append(message)

        @contextmanager
        def showing(self) -> Iterator[Show]:
            yield lambda pace, note: self.seen.append((pace.label, pace.amount(), pace.tokens))

    bars = Bars()
    with working(bars, "encoding", 10, "rows") as advance:
        advance(3, tokens=2)
    assert bars.seen == [("encoding", "0 of 10 rows", 0), ("encoding", "3 of 10 rows", 2)]
