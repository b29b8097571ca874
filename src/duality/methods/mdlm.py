"""MDLM: masked diffusion, absorbing noise with the bound as a weighted cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

from duality.diffusion.schedules import LogLinear
from duality.methods.base import DiscreteMethod
from duality.protocols import Schedule


@dataclass(frozen=True)
class MDLM(DiscreteMethod):
    """Absorbing-state diffusion. The network is not given the noise level unless ``time``.

    ``training_schedule`` decides at which levels training samples. It ends at alpha = 0, because at any other end a
    true bound would be infinite.
    """

    time: bool = False
    training_schedule: Schedule = LogLinear(eps=0.0)
