"""Where the steps of sampling are: ``steps`` + 1 times from 1 (noise) to 0 (clean), never rising, float64.

    Linear                  t_i = 1 - i / steps
    Cosine                  t_i = cos(pi i / (2 steps)): small steps at the noisy end, as MaskGIT's
    LinearConstantLinear    down to one level, several steps there for a corrector (``Psi``), and down to 0

A grid is given the schedule because it may be defined by levels. What must hold: exactly ``steps`` transitions, the
first time is 1, the last is 0. A step between equal times changes no level: it is for a sampler that redraws tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from duality.protocols import Schedule


@dataclass(frozen=True)
class Linear:
    """Equal steps of time."""

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        return torch.linspace(1, 0, steps + 1, dtype=torch.float64)


LINEAR = Linear()


@dataclass(frozen=True)
class Cosine:
    """t_i = cos(pi i / (2 steps)): the first steps are the smallest."""

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        times = torch.cos(torch.linspace(0, math.pi / 2, steps + 1, dtype=torch.float64))
        times[-1] = 0.0  # the cosine of the nearest number to pi / 2 is 6e-17
        return times


@dataclass(frozen=True)
class LinearConstantLinear:
    """A share ``high`` of the steps to the level ``alpha``, a share ``constant`` at it, the rest on to clean.

    Equal steps of time before and after. The first and the last part have at least one step each, for any
    shares: 2 steps have no constant part, and 1 step is ``Linear``.
    """

    alpha: float = 0.9
    high: float = 0.45
    constant: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha}: the level at which the grid stands still must be in (0, 1)")
        if not (self.high > 0 and self.constant >= 0 and self.high + self.constant < 1):
            raise ValueError(
                f"high is {self.high} and constant {self.constant}: they are shares of the steps, high > 0, "
                "constant >= 0 and high + constant < 1, as the rest leads on to clean"
            )

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        if steps == 1:
            return Linear()(schedule, steps)
        time = float(schedule.time(torch.tensor(self.alpha, dtype=torch.float64)))
        if not 0 < time < 1:
            first, last = schedule.alpha(torch.tensor([1.0, 0.0], dtype=torch.float64)).tolist()
            raise ValueError(
                f"alpha is {self.alpha}: {schedule} has levels from {first:.4g} to {last:.4g}; choose one between"
            )
        low = min(max(round((1 - self.high - self.constant) * steps), 1), steps - 1)
        high = min(max(round(self.high * steps), 1), steps - low)
        down = torch.linspace(1, time, high + 1, dtype=torch.float64)
        still = torch.full((steps - low - high,), time, dtype=torch.float64)
        return torch.cat([down, still, torch.linspace(time, 0, low + 1, dtype=torch.float64)[1:]])
