"""Trainings as tests start them: of a recipe, on the CPU, with the settings of the run that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duality.recipes.recipe import Recipe
from duality.runs.resume import TrainingPlan
from duality.runs.session import Outcome as Outcome
from duality.runs.start import DistillationBase


def train(recipe: Recipe, folder: Path, *, resume: bool = False, may_be_longer: bool = False, **how: Any) -> Outcome:
    """Train ``recipe`` into ``folder``; the rest is as for ``TrainingPlan.run``."""
    return TrainingPlan(recipe, folder, resume, may_be_longer=may_be_longer).run(**{"device": "cpu", **how})


def distill(base: Path, recipe: Recipe, folder: Path, *, resume: bool = False, **how: Any) -> Outcome:
    """Distill the run or model ``base`` into ``folder``."""
    return TrainingPlan(recipe, folder, resume, DistillationBase(base), may_be_longer=False).run(
        **{"device": "cpu", **how}
    )
