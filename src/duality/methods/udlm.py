"""UDLM."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from duality.denoisers.readouts import MeanDenoiser
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import LogLinear, Polynomial
from duality.methods.base import Times, check_end
from duality.objectives.nelbo import Bound
from duality.protocols import Backbone, Phase, Schedule, Vocabulary
from duality.samplers.ancestral import Ancestral


@dataclass(frozen=True)
class UDLM:
    """Uniform-state diffusion on the bound alone: Duo without curriculum.

    UDLM's own loss is the same number computed with dense K-vectors (``functional.dense_uniform_bound``), which costs
    time and memory and changes nothing else; Duo's form is used for both.
    """

    times: Times = LogLinear()

    def __post_init__(self) -> None:
        check_end(self.times, "times")

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        return MeanDenoiser(backbone.build(vocabulary.num_tokens, num_labels=vocabulary.num_labels))

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("bound", Bound(Uniform(num_tokens), self.times), steps),)

    def measure(self, num_tokens: int) -> Bound:
        return Bound(Uniform(num_tokens), Polynomial(eps=self.times.eps))

    def schedule(self) -> Schedule:
        return LogLinear(self.times.eps)

    def sampler(self, num_tokens: int) -> Ancestral:
        return Ancestral(Uniform(num_tokens))
