"""D3PM."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from duality.denoisers.readouts import MeanDenoiser, SubsDenoiser
from duality.diffusion.processes import Absorbing
from duality.diffusion.schedules import LogLinear
from duality.methods.base import NoiseKind, Times, check_mask_end, process_of
from duality.objectives.discrete_time import DiscreteTime
from duality.protocols import Backbone, Phase, Schedule, Vocabulary
from duality.samplers.ancestral import Ancestral


@dataclass(frozen=True)
class D3PM:
    """Discrete-time diffusion with ``num_steps`` (T) steps, with absorbing or uniform noise.

    ``times`` is the schedule of the chain itself: with absorbing noise it must end at alpha = 0.
    """

    noise: NoiseKind = "absorbing"
    num_steps: int = 1000
    times: Times = LogLinear(eps=0.0)

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(
                f"method.num_steps (T) is {self.num_steps}: the chain needs at least 1 step; the usual is 1000"
            )
        if self.noise == "absorbing":
            check_mask_end(self.times, "times")

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        process = process_of(self.noise, vocabulary.num_tokens)
        network = backbone.build(process.vocab_size, num_labels=vocabulary.num_labels)
        return SubsDenoiser(network, process, time=True) if isinstance(process, Absorbing) else MeanDenoiser(network)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        process = process_of(self.noise, num_tokens)
        return (Phase("T-step bound", DiscreteTime(process, self.times, self.num_steps), steps),)

    def measure(self, num_tokens: int) -> DiscreteTime:
        return DiscreteTime(process_of(self.noise, num_tokens), self.times, self.num_steps, separate=True)

    def schedule(self) -> Schedule:
        return self.times

    def sampler(self, num_tokens: int) -> Ancestral:
        return Ancestral(process_of(self.noise, num_tokens))
