"""Figures: the files are images, and shades follow the order of rounds and steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.sweep_rows import REAL, row

from duality.evaluation.figures import _plot_rows, draw, style
from duality.evaluation.samples import Row, Score
from duality.evaluation.tables import has_rounds


def test_figures_are_drawn(tmp_path: Path) -> None:
    """With and without a judge, rounds and real text; the files are images."""
    rounds = [
        row("duo", steps, 100.0 / (1 + number), 5.0, round=number or None) for number in range(3) for steps in (8, 64)
    ]
    _plot_rows([*rounds, row("ar", 64, 20.0, 5.0), REAL], tmp_path / "steps.png")
    _plot_rows([row("duo", 8, None, 5.0)], tmp_path / "alone.png")
    _plot_rows([*rounds, REAL], tmp_path / "rounds.png", over_rounds=True)
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
    assert has_rounds(rounds)


def test_of_several_temperatures_the_one_nearest_to_1_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"validity": Score(0.5, 0.4, 0.6, 8, "molecules")}
    rows = [row("duo", 8, None, 5.0, temperature=t, scores=scores) for t in (0.5, 0.9, 1.2)]
    shown: list[Sequence[Row]] = []
    with monkeypatch.context() as patch:
        patch.setattr("duality.evaluation.figures._plot_rows", lambda rows, target: shown.append(rows))
        draw([*rows, REAL], tmp_path / "steps.png")
        draw([REAL], tmp_path / "steps.png")
    assert shown == [[rows[1], REAL], [REAL]]
    draw(rows, tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_later_rounds_and_fewer_steps_are_darker() -> None:
    shades = [sum(style(0, place, 4)[0][:3]) for place in range(4)]
    assert shades == sorted(shades, reverse=True)
    assert len(set(shades)) == 4
    assert style(0, 0, 1) != style(1, 0, 1)
    assert style(0, 0, 1)[1] != style(6, 0, 1)[1]


def test_only_figures_with_rows_are_drawn(tmp_path: Path) -> None:
    """The figure against rounds needs rounds, and has to be requested."""
    rounds = [row("duo", 8, 10.0, 5.0, round=number) for number in (0, 1)]
    for name, rows, requested, expected in (
        ("plain", [row("duo", 8, 10.0, 5.0)], True, ["steps.png"]),
        ("rounds", rounds, True, ["rounds.png", "steps.png"]),
        ("not-requested", rounds, False, ["steps.png"]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        draw(rows, folder / "steps.png", folder / "rounds.png" if requested else None)
        assert sorted(path.name for path in folder.iterdir()) == expected
