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
