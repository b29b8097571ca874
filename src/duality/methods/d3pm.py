"""D3PM: discrete-time diffusion with T steps, with any process."""

from __future__ import annotations

from dataclasses import dataclass

from duality.diffusion.schedules import LogLinear
from duality.methods.base import DiscreteMethod
from duality.objectives.discrete_time import DiscreteTimeBound
from duality.protocols import Phase, Schedule


@dataclass(frozen=True)
class D3PM(DiscreteMethod):
    """Discrete-time diffusion with ``num_steps`` (T) steps; ``noise`` names a process (absorbing, uniform).

    ``training_schedule`` is the schedule of the chain itself: with a mask token it must end at alpha = 0.
    """

    noise: str = "absorbing"
    num_steps: int = 1000
    training_schedule: Schedule = LogLinear(eps=0.0)

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(
                f"method.num_steps (T) is {self.num_steps}: the chain needs at least 1 step; the usual is 1000"
            )
        if self.process(2).mask_id is not None:
            super().__post_init__()

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        chain = DiscreteTimeBound(self.process(num_tokens), self.training_schedule, self.num_steps)
        return (Phase("T-step bound", chain, steps),)

    def measure(self, num_tokens: int) -> DiscreteTimeBound:
        return DiscreteTimeBound(self.process(num_tokens), self.training_schedule, self.num_steps, separate=True)

    def sampling_schedule(self) -> Schedule:
        return self.training_schedule
