"""What the methods share."""

from __future__ import annotations

from typing import Literal

from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import Cosine, LogLinear, Polynomial

Times = LogLinear | Cosine | Polynomial


NoiseKind = Literal["absorbing", "uniform"]


def process_of(noise: NoiseKind, num_tokens: int) -> Uniform | Absorbing:
    """The process over a vocabulary; absorbing noise adds the mask to it."""
    return Uniform(num_tokens) if noise == "uniform" else Absorbing(num_tokens + 1)


def check_end(times: Times, name: str) -> None:
    """A network that is told -log(alpha) must not be told that of 0."""
    if not 0 < times.eps < 1:
        raise ValueError(
            f"method.{name}.eps is {times.eps}: the last signal level must be in (0, 1), because the network "
            "is told its logarithm"
        )


def check_mask_end(times: Times, name: str) -> None:
    """Absorbing noise must end at the mask: a token that is still shown is impossible under its prior."""
    if times.eps != 0:
        raise ValueError(
            f"method.{name}.eps is {times.eps}: absorbing noise must end at the mask, alpha = 0, or its bound is "
            f"infinite; set method.{name}.eps=0"
        )
