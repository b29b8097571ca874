"""UDLM: uniform-state diffusion on the bound alone, which is Duo without curriculum.

UDLM's own loss is the same number computed with dense K-vectors, which takes more time and memory; Duo's form is used
for both.
"""

from __future__ import annotations

from dataclasses import dataclass

from duality.diffusion.schedules import LogLinear
from duality.methods.base import DiscreteMethod
from duality.protocols import Schedule


@dataclass(frozen=True)
class UDLM(DiscreteMethod):
    """Uniform-state diffusion on the bound alone."""

    training_schedule: Schedule = LogLinear()
    noise = "uniform"
