"""Shared by the methods: what most of them are assembled of, the last level of a schedule, and the check of it."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from duality.denoisers.readouts import MeanDenoiser, SubsDenoiser, check_states
from duality.diffusion import PROCESSES
from duality.diffusion.schedules import LogLinear, Polynomial
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.protocols import AnyDenoiser, Backbone, Measure, Network, Phase, Process, Sampler, Schedule, Vocabulary
from duality.samplers.ancestral import Ancestral

D = TypeVar("D")


class ProcesslessMethod:
    """What a method without a discrete process says of it: the levels of its sampler are times, t = 1 - alpha."""

    def process(self, num_tokens: int) -> None:
        return None

    def sampling_schedule(self) -> Schedule:
        return LogLinear(eps=0.0)


class DiscreteMethod:
    """What a method of a discrete process has unless it says otherwise; each is a frozen dataclass.

    ``noise`` names its process. Its network gives a belief, and is given the noise level, unless ``time`` is False and
    there is a mask token. It is trained and measured on the continuous-time bound, and sampled by ancestral steps. The
    schedules of measuring and of sampling end where that of training does.
    """

    noise: str = "absorbing"
    time: bool = True
    training_schedule: Schedule = LogLinear(eps=0.0)

    def __post_init__(self) -> None:
        check_end(self.training_schedule, masked=self.process(2).mask_id is not None)

    def process(self, num_tokens: int) -> Process:
        """The process over a vocabulary; absorbing noise adds the mask token to it."""
        process: Process = PROCESSES[self.noise].over(num_tokens)  # type: ignore[attr-defined]  # it has classes alone
        return process

    def readout(self, network: Network, process: Process) -> nn.Module:
        """The denoiser of a network: with a mask token the belief excludes it."""
        check_states(network.num_states, process)
        return MeanDenoiser(network) if process.mask_id is None else SubsDenoiser(network, process, self.time)

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        process = self.process(vocabulary.num_tokens)
        return self.readout(backbone.build(process.vocab_size, num_labels=vocabulary.num_labels), process)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("bound", ContinuousTimeBound(self.process(num_tokens), self.training_schedule), steps),)

    def measure(self, num_tokens: int) -> Measure:
        return ContinuousTimeBound(self.process(num_tokens), Polynomial(eps=last_level(self.training_schedule)))

    def sampling_schedule(self) -> Schedule:
        return LogLinear(last_level(self.training_schedule))

    def sampler(self, num_tokens: int) -> Sampler:
        return Ancestral(self.process(num_tokens))


def last_level(schedule: Schedule) -> float:
    """alpha(1), read from the schedule."""
    return float(schedule.alpha(torch.ones((), dtype=torch.float64)))


def check_end(schedule: Schedule, masked: bool) -> None:
    """Refuse a last level that is no end for absorbing noise (``masked``), or for a network that is given the level.

    Absorbing noise must end at the mask token: an unmasked token is impossible under its prior. A network that is given
    -log(alpha) cannot be given -log 0.
    """
    level = last_level(schedule)
    if masked and level != 0:
        needed = "absorbing noise must end at the mask token, alpha = 0, or its bound is infinite"
    elif not masked and not 0 < level < 1:
        needed = "the last signal level must be in (0, 1), because the network is given its logarithm"
    else:
        return
    usual = "0" if masked else "0.001"
    raise ValueError(
        f"method.training_schedule ends at alpha = {level}: {needed}; set method.training_schedule.eps={usual}"
    )


def require(denoiser: AnyDenoiser, kind: type[D], method: str) -> D:
    """A denoiser that ``method`` built; any other is refused."""
    if not isinstance(denoiser, kind):
        raise ValueError(
            f"the objective of {method} needs a {kind.__name__}, got a {type(denoiser).__name__}: train it with the "
            "objective of its own method"
        )
    return denoiser
