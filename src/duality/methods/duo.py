"""Duo: uniform-state diffusion, trained first on tempered Gaussian latents and then on the bound."""

from __future__ import annotations

from dataclasses import dataclass

from duality.diffusion.schedules import Dual, GaussianSchedule, LinearVariance, LogLinear
from duality.methods.base import DiscreteMethod
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.curriculum import TemperedBound
from duality.protocols import Objective, Phase, Schedule


@dataclass(frozen=True)
class Duo(DiscreteMethod):
    """Uniform-state diffusion, trained first on tempered Gaussian latents and then on the bound.

    ``curriculum`` is the fraction of the steps spent on the tempered bound at temperature ``tau`` with alpha between
    ``alpha_min`` and ``alpha_max``; 0 is Duo without curriculum. ``tau`` 0 is the limit of the tempered bound: the
    bound itself on that window of alpha. ``training_schedule`` decides at which levels the bound is sampled in
    training; it changes the variance of the loss, not its mean.
    """

    curriculum: float = 0.5
    tau: float = 0.001
    alpha_min: float = 0.05
    alpha_max: float = 0.95
    gaussian_schedule: GaussianSchedule = LinearVariance()
    training_schedule: Schedule = LogLinear()
    noise = "uniform"

    def __post_init__(self) -> None:
        if not 0 <= self.curriculum <= 1:
            raise ValueError(f"method.curriculum is {self.curriculum}: it is a fraction of the steps, in [0, 1]")
        if not self.tau >= 0:
            raise ValueError(
                f"method.tau is {self.tau}: it must not be negative; 0 is the bound on the window of alpha, and for "
                "no curriculum set method.curriculum=0"
            )
        if not 0 < self.alpha_min < self.alpha_max < 1:
            raise ValueError(
                f"method.alpha_min is {self.alpha_min} and method.alpha_max {self.alpha_max}: "
                "0 < alpha_min < alpha_max < 1 is needed"
            )
        super().__post_init__()

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        curriculum = Phase("curriculum", self.window(num_tokens), round(self.curriculum * steps))
        return curriculum, *super().phases(num_tokens, steps)

    def window(self, num_tokens: int) -> Objective:
        """The objective of the curriculum: the bound on a window of alpha, its input as soft as ``tau``."""
        schedule = Dual(num_tokens, self.gaussian_schedule, self.alpha_min, self.alpha_max)
        if self.tau == 0:
            return ContinuousTimeBound(self.process(num_tokens), schedule)
        return TemperedBound(schedule, self.tau)
