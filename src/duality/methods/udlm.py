"""UDLM: uniform-state diffusion on the bound alone, which is Duo without curriculum.

UDLM's own loss is the same number computed with dense K-vectors, which takes more time and memory; Duo's form is used
for both.
"""

from __future__ import annotations

from dataclasses import dataclass

from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import LogLinear
from duality.methods.base import DiscreteMethod, check_noisy_end
from duality.protocols import Schedule


@dataclass(frozen=True)
class UDLM(DiscreteMethod):
    """Uniform-state diffusion on the bound alone."""

    training_schedule: Schedule = LogLinear()

    def __post_init__(self) -> None:
        check_noisy_end(self.training_schedule)

    def process(self, num_tokens: int) -> Uniform:
        return Uniform.over(num_tokens)
