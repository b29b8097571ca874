"""Distillation: how a trained model becomes one that needs few steps, in rounds in which it learns from itself.

    DCD    Discrete Consistency Distillation, for uniform noise (the paper's Algorithms 1 and 2)
    SDTT   Self-Distillation Through Time, for absorbing noise

N rounds of M steps. When a round begins, the teacher becomes a copy of the student: of its weights (Algorithm 1) or of
their average (Algorithm 2). Within a round the teacher does not change. The student learns the belief that its teacher
has at delta less noise (DCD), or after several steps of length delta (SDTT). delta grows from round to round: it
doubles, or grows linearly. Round and delta depend on the step alone, so a resumed run has the same ones. The paper's 5
rounds from 1/512 (DCD) or 1/1024 (SDTT) end with steps of 1/32; ``runs.requests.RoundChanges`` has those for another
number of steps.

A distillation is a part of a recipe (``Recipe.distillation``): method, network, measure and sampler stay the
same, only the phases differ. To add another: a subclass of ``Rounds`` with ``fits`` and ``objective``, and its name in
``DISTILLATIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from duality.diffusion import Compare, Divergence
from duality.diffusion.schedules import Dual, GaussianSchedule, LinearLogSnr
from duality.objectives.consistency import Consistency
from duality.objectives.through_time import ThroughTime
from duality.protocols import AnyDenoiser, Distillation, Method, Objective, Phase, Process, Tail, TokenSampler
from duality.training import DISTILLATIONS, Growth, TeacherCopy


@dataclass(frozen=True)
class Rounds:
    """Shared by all kinds of distillation: number and length of the rounds, delta, and the kind of teacher."""

    rounds: int = 5
    round_steps: int = 10_000
    delta: float = 1 / 512
    growth: Growth = "double"
    teacher: TeacherCopy = "weights"
    divergence: Divergence = "kl-backward"
    tail: ClassVar[Tail] = "ancestral"
    """How the last step of a sample is best taken after this distillation."""

    def __post_init__(self) -> None:
        for name in ("rounds", "round_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"distillation.{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 < self.delta <= 1 or self.delta_of_round(self.rounds) > 1:
            raise ValueError(
                f"distillation.delta is {self.delta} and grows to {self.delta_of_round(self.rounds)} in round "
                f"{self.rounds}: delta is a fraction of the time from data to noise, in (0, 1]; begin smaller or take "
                "fewer rounds"
            )

    @property
    def steps(self) -> int:
        """The steps of all rounds."""
        return self.rounds * self.round_steps

    @property
    def deltas_per_step(self) -> int:
        """How many deltas long a step is that the student learns to make at once."""
        return 1

    def round_at(self, step: int) -> dict[str, float]:
        """Round, from 1, and delta of the teacher that a checkpoint at ``step`` holds: those of the last step taken."""
        number = max(1, -(-step // self.round_steps))
        return {"round": number, "delta": self.delta_of_round(number)}

    def delta_of_round(self, number: int) -> float:
        """delta in round ``number``, from 1."""
        return self.delta * (2 ** (number - 1) if self.growth == "double" else number)

    @property
    def sampling_steps(self) -> int:
        """The number of equal steps of time that the last round teaches."""
        return max(1, round(1 / (self.delta_of_round(self.rounds) * self.deltas_per_step)))

    @property
    def sharpens(self) -> bool:
        """Whether the student's samples have less entropy than those of its base, at the same temperature."""
        return False

    def phases(self, method: Method, num_tokens: int, teacher: AnyDenoiser) -> tuple[Phase, ...]:
        """One per round."""
        deltas = (self.delta_of_round(number) for number in range(1, self.rounds + 1))
        objectives = (self.objective(method, num_tokens, teacher, delta) for delta in deltas)
        return tuple(
            Phase(f"round {number}", objective, number * self.round_steps, self.teacher)
            for number, objective in enumerate(objectives, 1)
        )

    def objective(self, method: Method, num_tokens: int, teacher: AnyDenoiser, delta: float) -> Objective:
        """What the student learns from its teacher in a round of this delta."""
        raise NotImplementedError

    @staticmethod
    def fits(process: Process) -> bool:
        """Whether a model of this process can be distilled so."""
        raise NotImplementedError


@dataclass(frozen=True)
class DCD(Rounds):
    """Discrete Consistency Distillation, for a belief about uniform noise.

    The student at z_t learns from its teacher at the cleaner z_s. ``compare`` says what of the two is compared:
    "output", as in the paper, what the networks give; "posterior", their beliefs about the clean tokens given
    everything. The difference is the evidence of a position's own noisy token: a network of uniform noise is
    trained to leave it out, because the sampler adds it. Compared by "output", the student's output begins to depend on
    that token, and the sampler counts it twice. ``objectives.consistency`` has the formulas, and what is exactly true.

    Algorithm 1 draws t from [0, 1] and takes s = max(t - delta, 0). Here t runs over the Gaussian schedule from the
    level ``alpha_max`` at t = 0 to ``alpha_min`` at t = 1. The defaults are log-SNR from 4 to 1 at K = 50 257, which
    the released code distills with; as levels of alpha they mean the same for every vocabulary.
    """

    gaussian_schedule: GaussianSchedule = LinearLogSnr()
    alpha_min: float = 0.0062
    alpha_max: float = 0.9987
    compare: Compare = "output"
    tail: ClassVar[Tail] = "posterior"
    """The noisy token of the last step is evidence, which a greedy tail would ignore."""

    @property
    def sharpens(self) -> bool:
        """On prose at temperature 1 as much as a temperature of 0.8 does (docs/reproduction.md)."""
        return self.compare == "posterior"

    @staticmethod
    def fits(process: Process) -> bool:
        """Only a process with a uniform prior is the argmax of a Gaussian diffusion."""
        prior = process.prior()
        return bool((prior == prior[0]).all())

    def objective(self, method: Method, num_tokens: int, teacher: AnyDenoiser, delta: float) -> Consistency:
        required_sampler(method, num_tokens, "dcd")
        schedule = Dual(num_tokens, self.gaussian_schedule, self.alpha_min, self.alpha_max)
        return Consistency(teacher, schedule, delta, self.divergence, self.compare)


@dataclass(frozen=True)
class SDTT(Rounds):
    """Self-Distillation Through Time, for a belief about absorbing noise: ``teacher_steps`` of the teacher in one."""

    delta: float = 1 / 1024
    teacher_steps: int = 2

    def __post_init__(self) -> None:
        if self.teacher_steps < 1:
            raise ValueError(f"distillation.teacher_steps is {self.teacher_steps}: it must be at least 1, usually 2")
        super().__post_init__()

    @property
    def deltas_per_step(self) -> int:
        return self.teacher_steps

    @staticmethod
    def fits(process: Process) -> bool:
        """Only with a mask token: a target is a belief at a mask token."""
        return process.mask_id is not None

    def objective(self, method: Method, num_tokens: int, teacher: AnyDenoiser, delta: float) -> ThroughTime:
        sampler, schedule = required_sampler(method, num_tokens, "sdtt"), method.sampling_schedule()
        return ThroughTime(teacher, sampler, schedule, delta, self.teacher_steps, self.divergence)


_NEEDED_NOISE = {
    "dcd": "uniform noise (Duo, UDLM, D3PM with method.noise=uniform)",
    "sdtt": "absorbing noise (MDLM, DiffusionBERT, D3PM with method.noise=absorbing)",
}


def required_sampler(method: Method, num_tokens: int, name: str) -> TokenSampler:
    """The sampler of a model that the distillation ``name`` fits; any other model is refused with a reason."""
    process, sampler = method.process(num_tokens), method.sampler(num_tokens)
    model = type(method).__name__
    start = f"{model} cannot be distilled with {name}, which needs a model of {_NEEDED_NOISE.get(name, 'other noise')}"
    if process is None:
        raise ValueError(f"{start}: it has no discrete noise whose steps could be saved; train MDLM or Duo")
    if not isinstance(sampler, TokenSampler):
        raise ValueError(
            f"{start}: its sampler ({type(sampler).__name__}) does not draw from a belief at a noise level, so there "
            "is no divergence to learn from; train MDLM or Duo"
        )
    if not distillation_named(name).fits(process):
        other = suited_distillation(method, num_tokens)
        raise ValueError(f"{start}: for {model} use --method {other}" if other else f"{start}: no distillation fits")
    return sampler


def suited_distillation(method: Method, num_tokens: int = 2) -> str | None:
    """The name of the distillation for a method's noise; None if there is none."""
    process = method.process(num_tokens)
    fitting = (name for name in DISTILLATIONS if process is not None and distillation_named(name).fits(process))
    return next(fitting, None)


def distillation_named(name: str) -> type[Distillation]:
    """A registered kind of distillation."""
    return cast(type[Distillation], DISTILLATIONS[name])
