"""Duo's phases: the curriculum on its window of alpha, then the bound."""

from __future__ import annotations

import pytest
import torch

from duality.diffusion.schedules import Dual
from duality.methods.duo import Duo
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.curriculum import TemperedBound


def test_tau_0_is_the_bound_on_the_window_of_the_curriculum() -> None:
    curriculum, bound = Duo(curriculum=0.25, tau=0.0, alpha_min=0.1, alpha_max=0.9).phases(20, 100)
    assert (curriculum.until, bound.until) == (25, 100)
    assert isinstance(curriculum.objective, ContinuousTimeBound)
    ends = curriculum.objective.schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([0.9, 0.1])


def test_a_positive_tau_is_the_tempered_bound_on_the_same_window() -> None:
    soft = Duo(tau=0.01).phases(20, 100)[0].objective
    hard = Duo(tau=0.0).phases(20, 100)[0].objective
    assert isinstance(soft, TemperedBound)
    assert isinstance(hard, ContinuousTimeBound)
    assert isinstance(hard.schedule, Dual)
    assert soft.schedule == hard.schedule
    assert soft.tau == 0.01
