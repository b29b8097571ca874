"""A fast version of the thousand kill points: see tests/kill_points.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from kill_points import SAVE_EVERY, SCENARIOS, kill_points


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_was_killed_ends_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    count = 2 if name == "two ranks" else 3  # which have to find each other every time
    tally = kill_points(count, tmp_path, name)
    assert tally.kills == count
    assert tally.completed >= 1
    assert tally.most_lost <= SAVE_EVERY
