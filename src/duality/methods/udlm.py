"""UDLM: uniform-state diffusion on the bound alone, which is Duo without curriculum.

UDLM's own loss is the same number computed with dense K-vectors, which takes more time and memory; Duo's form is used
for both.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from duality.denoisers.readouts import MeanDenoiser
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import LogLinear, Polynomial
from duality.methods.base import check_noisy_end, last_level
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.protocols import Backbone, Phase, Schedule, Vocabulary
from duality.samplers.ancestral import Ancestral


@dataclass(frozen=True)
class UDLM:
    """Uniform-state diffusion on the bound alone."""

    training_schedule: Schedule = LogLinear()

    def __post_init__(self) -> None:
        check_noisy_end(self.training_schedule)

    def process(self, num_tokens: int) -> Uniform:
        return Uniform.over(num_tokens)

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        return MeanDenoiser(backbone.build(vocabulary.num_tokens, num_labels=vocabulary.num_labels))

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("bound", ContinuousTimeBound(self.process(num_tokens), self.training_schedule), steps),)

    def measure(self, num_tokens: int) -> ContinuousTimeBound:
        return ContinuousTimeBound(self.process(num_tokens), Polynomial(eps=last_level(self.training_schedule)))

    def sampling_schedule(self) -> Schedule:
        return LogLinear(last_level(self.training_schedule))

    def sampler(self, num_tokens: int) -> Ancestral:
        return Ancestral(self.process(num_tokens))
