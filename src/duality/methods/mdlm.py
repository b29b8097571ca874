"""MDLM: masked diffusion, absorbing noise with the bound as a weighted cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from duality.denoisers.readouts import SubsDenoiser
from duality.diffusion.processes import Absorbing
from duality.diffusion.schedules import LogLinear, Polynomial
from duality.methods.base import check_masked_end
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.protocols import Backbone, Phase, Schedule, Vocabulary
from duality.samplers.ancestral import Ancestral


@dataclass(frozen=True)
class MDLM:
    """Absorbing-state diffusion. The network is not given the noise level unless ``time``.

    ``training_schedule`` decides at which levels training samples. It ends at alpha = 0, because at any other end a
    true bound would be infinite.
    """

    time: bool = False
    training_schedule: Schedule = LogLinear(eps=0.0)

    def __post_init__(self) -> None:
        check_masked_end(self.training_schedule)

    def process(self, num_tokens: int) -> Absorbing:
        return Absorbing.over(num_tokens)

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        process = self.process(vocabulary.num_tokens)
        return SubsDenoiser(backbone.build(process.vocab_size, num_labels=vocabulary.num_labels), process, self.time)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("bound", ContinuousTimeBound(self.process(num_tokens), self.training_schedule), steps),)

    def measure(self, num_tokens: int) -> ContinuousTimeBound:
        return ContinuousTimeBound(self.process(num_tokens), Polynomial(eps=0.0))

    def sampling_schedule(self) -> Schedule:
        return LogLinear(eps=0.0)

    def sampler(self, num_tokens: int) -> Ancestral:
        return Ancestral(self.process(num_tokens))
