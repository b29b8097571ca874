"""A fast version of the 100 kill points: see support/kill_points.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kill_points import SAVE_EVERY, kill_points


@pytest.mark.parametrize("distill", [False, True], ids=["training", "distillation"])
def test_killed_runs_end_like_an_uninterrupted_one(tmp_path: Path, distill: bool) -> None:
    tally = kill_points(6, tmp_path, distill=distill)
    assert tally.kills == 6
    assert tally.completed >= 1
    assert tally.most_lost <= SAVE_EVERY


def test_two_at_once_that_are_killed_end_like_one(tmp_path: Path) -> None:
    """One of two trains and the other is refused, however often both are killed."""
    tally = kill_points(5, tmp_path, rivals=2)
    assert tally.kills == 5
    assert tally.completed >= 1
    assert tally.most_lost <= SAVE_EVERY
