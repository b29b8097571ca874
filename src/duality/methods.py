"""Named assemblies of process, schedule, objectives and sampler: what a recipe chooses and a table compares.

To add a model: one frozen dataclass here that satisfies ``protocols.Method``, and its name in ``METHODS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from duality.objectives import Bound, TemperedBound
from duality.processes import Uniform
from duality.protocols import Phase, Process, Schedule
from duality.samplers import Ancestral
from duality.schedules import Cosine, Dual, LinearLogSnr, LinearSignal, LinearVariance, LogLinear, Polynomial


@dataclass(frozen=True)
class Duo:
    """Uniform-state diffusion, trained first on tempered Gaussian latents and then on the bound.

    ``curriculum`` is the fraction of the steps spent on the tempered bound at temperature ``tau`` with alpha between
    ``alpha_min`` and ``alpha_max``; 0 is Duo without curriculum. ``times`` decides where the bound, in training, spends
    its samples; it changes the variance of the loss, not its mean.
    """

    curriculum: float = 0.5
    tau: float = 0.001
    alpha_min: float = 0.05
    alpha_max: float = 0.95
    clock: LinearVariance | LinearSignal | LinearLogSnr = LinearVariance()
    times: LogLinear | Cosine | Polynomial = LogLinear()

    def __post_init__(self) -> None:
        if not 0 <= self.curriculum <= 1:
            raise ValueError(f"method.curriculum is {self.curriculum}: it is a fraction of the steps, in [0, 1]")
        if not self.tau > 0:
            raise ValueError(
                f"method.tau is {self.tau}: it must be positive; for no curriculum set method.curriculum=0"
            )
        if not 0 < self.alpha_min < self.alpha_max < 1:
            raise ValueError(
                f"method.alpha_min is {self.alpha_min} and method.alpha_max {self.alpha_max}: "
                "0 < alpha_min < alpha_max < 1 is needed"
            )
        if not 0 < self.times.eps < 1:
            raise ValueError(
                f"method.times.eps is {self.times.eps}: the last signal level must be in (0, 1), because the network "
                "is told its logarithm"
            )

    def process(self, num_tokens: int) -> Uniform:
        return Uniform(num_tokens)

    def schedule(self) -> Schedule:
        return LogLinear(self.times.eps)

    def phases(self, process: Process, steps: int) -> tuple[Phase, ...]:
        window = Dual(process.vocab_size, self.clock, self.alpha_min, self.alpha_max)
        tempered = Phase("curriculum", TemperedBound(window, self.tau), round(self.curriculum * steps))
        return (tempered, Phase("bound", Bound(Uniform(process.vocab_size), self.times), steps))

    def bound(self, process: Process) -> Bound:
        return Bound(Uniform(process.vocab_size), Polynomial(eps=self.times.eps))

    def sampler(self) -> Ancestral:
        return Ancestral()


METHODS: tuple[type, ...] = (Duo,)
