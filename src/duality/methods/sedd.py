"""SEDD: score entropy discrete diffusion, with any process."""

from __future__ import annotations

from dataclasses import dataclass

from duality.denoisers.readouts import ScoreDenoiser
from duality.diffusion.schedules import LogLinear, Polynomial
from duality.methods.base import DiscreteMethod, check_end, last_level
from duality.objectives.score_entropy import ScoreEntropy
from duality.protocols import Network, Phase, Process, Schedule
from duality.samplers.analytic import Analytic


@dataclass(frozen=True)
class SEDD(DiscreteMethod):
    """Score entropy discrete diffusion; ``noise`` names a process (absorbing, uniform)."""

    noise: str = "absorbing"
    training_schedule: Schedule = LogLinear()

    def __post_init__(self) -> None:
        self.process(2)  # which refuses a name that is not registered
        check_end(self.training_schedule, masked=False)

    def readout(self, network: Network, process: Process) -> ScoreDenoiser:
        return ScoreDenoiser(network, process)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("score entropy", ScoreEntropy(self.process(num_tokens), self.training_schedule), steps),)

    def measure(self, num_tokens: int) -> ScoreEntropy:
        process = self.process(num_tokens)
        # With a mask token the bound is measured down to alpha = 0, where its prior term is 0 instead of infinite.
        last = last_level(self.training_schedule) if process.mask_id is None else 0.0
        return ScoreEntropy(process, Polynomial(eps=last))

    def sampler(self, num_tokens: int) -> Analytic:
        return Analytic(self.process(num_tokens))
