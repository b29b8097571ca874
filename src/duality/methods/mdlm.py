"""MDLM: masked diffusion, absorbing noise with the bound as a weighted cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

from duality.denoisers.readouts import SubsDenoiser
from duality.diffusion.processes import Absorbing
from duality.diffusion.schedules import LogLinear
from duality.methods.base import DiscreteMethod, check_masked_end
from duality.protocols import Network, Process, Schedule


@dataclass(frozen=True)
class MDLM(DiscreteMethod):
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

    def readout(self, network: Network, process: Process) -> SubsDenoiser:
        return SubsDenoiser(network, process, self.time)
