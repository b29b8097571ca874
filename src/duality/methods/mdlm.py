"""MDLM."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from duality.denoisers.readouts import SubsDenoiser
from duality.diffusion.processes import Absorbing
from duality.diffusion.schedules import LogLinear, Polynomial
from duality.methods.base import Times, check_mask_end
from duality.objectives.masked import MaskedBound
from duality.protocols import Backbone, Phase, Schedule, Vocabulary
from duality.samplers.ancestral import Ancestral


@dataclass(frozen=True)
class MDLM:
    """Absorbing-state diffusion. The network is not told the noise level unless ``time``.

    ``times`` decides where training spends its samples; it ends at alpha = 0, as at any other end a true bound would be
    infinite.
    """

    time: bool = False
    times: Times = LogLinear(eps=0.0)

    def __post_init__(self) -> None:
        check_mask_end(self.times, "times")

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        process = Absorbing(vocabulary.num_tokens + 1)
        network = backbone.build(process.vocab_size, num_labels=vocabulary.num_labels)
        return SubsDenoiser(network, process, self.time)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("bound", MaskedBound(Absorbing(num_tokens + 1), self.times), steps),)

    def measure(self, num_tokens: int) -> MaskedBound:
        return MaskedBound(Absorbing(num_tokens + 1), Polynomial(eps=0.0))

    def schedule(self) -> Schedule:
        return LogLinear(eps=0.0)

    def sampler(self, num_tokens: int) -> Ancestral:
        return Ancestral(Absorbing(num_tokens + 1))
