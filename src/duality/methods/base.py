"""Shared by the methods: a process by name, the last level of a schedule, and checks of it."""

from __future__ import annotations

from typing import TypeVar

import torch

from duality.diffusion import PROCESSES
from duality.protocols import AnyDenoiser, Process, Schedule

D = TypeVar("D")


def process_named(noise: str, num_tokens: int) -> Process:
    """The registered process ``noise`` over a vocabulary; absorbing noise adds the mask token to it."""
    process: Process = PROCESSES[noise].over(num_tokens)  # type: ignore[attr-defined]  # the registry has classes alone
    return process


def last_level(schedule: Schedule) -> float:
    """alpha(1), read from the schedule."""
    return float(schedule.alpha(torch.ones((), dtype=torch.float64)))


def check_noisy_end(schedule: Schedule) -> None:
    """A network that is given -log(alpha) cannot be given -log 0."""
    level = last_level(schedule)
    if not 0 < level < 1:
        raise ValueError(
            f"method.training_schedule ends at alpha = {level}: the last signal level must be in (0, 1), because the "
            "network is given its logarithm; set method.training_schedule.eps=0.001"
        )


def check_masked_end(schedule: Schedule) -> None:
    """Absorbing noise must end at the mask token: an unmasked token is impossible under its prior."""
    level = last_level(schedule)
    if level != 0:
        raise ValueError(
            f"method.training_schedule ends at alpha = {level}: absorbing noise must end at the mask token, alpha = 0, "
            "or its bound is infinite; set method.training_schedule.eps=0"
        )


def require(denoiser: AnyDenoiser, kind: type[D], method: str) -> D:
    """A denoiser that ``method`` built; any other is refused."""
    if not isinstance(denoiser, kind):
        raise ValueError(
            f"the objective of {method} needs a {kind.__name__}, got a {type(denoiser).__name__}: train it with the "
            "objective of its own method"
        )
    return denoiser
