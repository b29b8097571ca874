"""Time grids: the requested number of steps, from noise to clean, with times that never rise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.oracles import uniform_toy
from torch import Tensor

from duality.diffusion.schedules import Cosine as CosineSchedule
from duality.diffusion.schedules import Dual, LogLinear, Polynomial
from duality.protocols import Grid, Schedule
from duality.samplers import GRIDS
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import Frame, generate, levels
from duality.samplers.grids import Cosine, Linear, LinearConstantLinear

SCHEDULES: list[Schedule] = [LogLinear(), CosineSchedule(), Polynomial(), Dual(100)]


@pytest.mark.parametrize("kind", GRIDS.types())
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_a_grid_goes_from_one_to_zero_in_the_requested_steps(kind: type, schedule: Schedule) -> None:
    for steps in (*range(1, 40), 1000):
        times: Tensor = kind()(schedule, steps)
        assert times.dtype == torch.float64
        assert len(times) == steps + 1
        assert (float(times[0]), float(times[-1])) == (1.0, 0.0)
        assert (times.diff() <= 0).all()
        alphas = levels(schedule, steps, kind())
        assert len(alphas) == steps + 1
        assert (alphas.diff() >= 0).all()
        assert float(alphas[-1]) == 1.0
        # the level is constant exactly where the time is constant, except that the last step always ends at 1
        assert torch.equal((times.diff() == 0)[:-1], (alphas.diff() == 0)[:-1])


def test_the_even_grids_are_their_formulas() -> None:
    assert torch.allclose(Linear()(LogLinear(), 5), torch.tensor([1, 0.8, 0.6, 0.4, 0.2, 0], dtype=torch.float64))
    expected = [math.cos(math.pi * i / 14) for i in range(8)]
    assert torch.allclose(Cosine()(LogLinear(), 7), torch.tensor(expected, dtype=torch.float64), atol=1e-15)
    assert (Cosine()(LogLinear(), 7).diff().diff() < 0).all()  # each step is larger than the one before


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize(("high", "constant", "parts"), [(0.45, 0.5, (18, 20, 2)), (0.25, 0.25, (10, 10, 20))])
def test_the_loop_has_its_share_of_the_steps(
    schedule: Schedule, high: float, constant: float, parts: tuple[int, int, int]
) -> None:
    grid = LinearConstantLinear(0.7, high, constant)
    times = grid(schedule, 40)
    still = (times.diff() == 0).nonzero()[:, 0]
    assert (int(still[0]), len(still), 39 - int(still[-1])) == parts
    assert torch.allclose(levels(schedule, 40, grid)[still], torch.tensor(0.7, dtype=torch.float64), atol=1e-9)
    for part in (times[: parts[0] + 1], times[-parts[2] - 1 :]):
        assert torch.allclose(part.diff(), part.diff()[0].expand(len(part) - 1), atol=1e-14)


def test_few_steps_keep_a_step_to_the_loop_and_a_step_after_it() -> None:
    grid, schedule = LinearConstantLinear(0.9), LogLinear(0.0)
    expected = {1: [1, 0], 2: [1, 0.1, 0], 3: [1, 0.1, 0.1, 0], 4: [1, 0.55, 0.1, 0.1, 0]}
    for steps, times in expected.items():
        assert torch.allclose(grid(schedule, steps), torch.tensor(times, dtype=torch.float64), atol=1e-12)
    # shares that would leave no step for the first part, or for the last
    for high, constant in ((1e-3, 0.0), (1e-3, 0.99), (0.99, 0.0)):
        for steps in (2, 3, 10):
            times = LinearConstantLinear(0.9, high, constant)(schedule, steps)
            assert float(times[0]) > float(times[1])
            assert float(times[-2]) > 0
            assert any(abs(float(time) - 0.1) < 1e-12 for time in times)


def test_what_a_grid_cannot_do_is_refused() -> None:
    for alpha in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"must be in \(0, 1\)"):
            LinearConstantLinear(alpha)
    for high, constant in ((0.0, 0.5), (0.5, -0.1), (0.5, 0.5), (math.nan, 0.1)):
        with pytest.raises(ValueError, match="shares of the steps"):
            LinearConstantLinear(0.9, high, constant)
    for schedule, alpha in ((Dual(100), 0.99), (LogLinear(eps=0.5), 0.3)):
        with pytest.raises(ValueError, match="choose one between"):
            levels(schedule, 8, LinearConstantLinear(alpha))
    for grid in GRIDS.values():
        with pytest.raises(ValueError, match="at least 1 step"):
            levels(LogLinear(), 0, grid())


@pytest.mark.parametrize("kind", GRIDS.types())
def test_generation_visits_the_levels_of_its_grid_and_shows_every_state(kind: type) -> None:
    _, process, oracle = uniform_toy()
    grid: Grid = kind()
    frames: list[Frame] = []
    options: dict[str, Any] = {"num": 5, "length": 2, "steps": 6, "seed": 1, "batch_size": 2, "grid": grid}
    tokens = generate(oracle, LogLinear(), Ancestral(process), **options, watch=frames.append)
    assert [frame.first for frame in frames] == [first for first in (0, 2, 4) for _ in range(7)]
    assert [frame.step for frame in frames] == [*range(7)] * 3
    assert {frame.steps for frame in frames} == {6}
    assert [frame.alpha for frame in frames] == levels(LogLinear(), 6, grid).tolist() * 3
    assert torch.equal(torch.cat([frame.tokens for frame in frames[6::7]]), tokens)
    # the first state is noise, with as many samples as the batch has
    assert [len(frame.tokens) for frame in frames[::7]] == [2, 2, 1]
    single = generate(oracle, LogLinear(), Ancestral(process), **{**options, "batch_size": 5}, watch=frames.append)
    assert torch.equal(single, tokens)
    assert torch.equal(torch.cat([frame.tokens for frame in frames[:21:7]]), frames[21].tokens)
