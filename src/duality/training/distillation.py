"""Distillation: how a trained model becomes one that needs few steps, as rounds in which it learns from itself.

    DCD    Discrete Consistency Distillation, for uniform noise (the paper's Algorithms 1 and 2)
    SDTT   Self-Distillation Through Time, for absorbing noise

N rounds of M steps. When a round begins, the teacher becomes a copy of the student: of its weights (Algorithm 1) or of
their average (Algorithm 2). Within a round the teacher stands still, and the student learns to say after one stride
what its teacher says after a stride less of noise (DCD), or after several (SDTT). The stride ``delta`` grows from round
to round: it doubles, or grows linearly. Round and stride follow from the step alone, so a resumed run has them right.

A distillation is a part of a recipe (``Recipe.distillation``): method, network, measure and sampler stay what they
were, only the phases differ. To add another: a dataclass here with ``phases``, and its name in ``DISTILLATIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from duality.diffusion.divergences import Divergence
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import Dual, LinearLogSnr, LinearSignal, LinearVariance
from duality.methods.diffusion_bert import SpindleSampler
from duality.noise import Noise
from duality.objectives.consistency import Consistency
from duality.objectives.through_time import ThroughTime
from duality.protocols import Denoiser, Method, Phase
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.autoregressive import Autoregressive


@dataclass(frozen=True)
class Rounds:
    """How often, how long, by which stride, from whom: what all kinds of distillation share."""

    rounds: int = 5
    round_steps: int = 10_000
    delta: float = 1 / 512
    growth: Literal["double", "linear"] = "double"
    teacher: Literal["weights", "ema"] = "weights"
    divergence: Divergence = "kl-backward"

    def __post_init__(self) -> None:
        for name in ("rounds", "round_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"distillation.{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 < self.delta <= 1 or self.stride(self.rounds) > 1:
            raise ValueError(
                f"distillation.delta is {self.delta} and grows to {self.stride(self.rounds)} in round {self.rounds}: "
                "a stride is a share of the time from data to noise, in (0, 1]; begin smaller or take fewer rounds"
            )

    @property
    def steps(self) -> int:
        """All of them."""
        return self.rounds * self.round_steps

    def round_of(self, step: int) -> int:
        """The round, from 1, whose teacher a checkpoint at ``step`` holds: that of the last step taken."""
        return max(1, -(-step // self.round_steps))

    def stride(self, number: int) -> float:
        """delta in round ``number``, from 1."""
        return self.delta * (2 ** (number - 1) if self.growth == "double" else number)


@dataclass(frozen=True)
class DCD(Rounds):
    """Discrete Consistency Distillation, for a belief about uniform noise.

    Times are of the Gaussian schedule ``clock`` between the levels ``alpha_max`` and ``alpha_min``: by default what the
    released code distils with, log-SNR from 4 to 1, which is alpha from 0.9986 to 0.006 at K = 50 257.
    """

    clock: LinearVariance | LinearSignal | LinearLogSnr = LinearLogSnr()
    alpha_min: float = 0.005
    alpha_max: float = 0.999

    def phases(self, method: Method, num_tokens: int, teacher: Denoiser) -> tuple[Phase, ...]:
        """One per round."""
        own = method.sampler(num_tokens)
        if not isinstance(own, Ancestral) or not isinstance(own.process, Uniform):
            raise ValueError(refusal(method, own, "dcd", "uniform noise (Duo, UDLM, D3PM with method.noise=uniform)"))
        window = Dual(num_tokens, self.clock, self.alpha_min, self.alpha_max)
        return tuple(
            Phase(
                f"round {number}",
                Consistency(teacher, window, self.stride(number), self.divergence),
                number * self.round_steps,
                self.teacher,
            )
            for number in range(1, self.rounds + 1)
        )


@dataclass(frozen=True)
class SDTT(Rounds):
    """Self-Distillation Through Time, for a belief about absorbing noise: ``teacher_steps`` of the teacher in one."""

    delta: float = 1 / 1024
    teacher_steps: int = 2

    def __post_init__(self) -> None:
        if self.teacher_steps < 1:
            raise ValueError(f"distillation.teacher_steps is {self.teacher_steps}: it must be at least 1, usually 2")
        super().__post_init__()

    def phases(self, method: Method, num_tokens: int, teacher: Denoiser) -> tuple[Phase, ...]:
        """One per round."""
        own = method.sampler(num_tokens)
        if not isinstance(own, (Ancestral, SpindleSampler)) or not isinstance(own.process, Absorbing):
            names = "absorbing noise (MDLM, DiffusionBERT, D3PM with method.noise=absorbing)"
            raise ValueError(refusal(method, own, "sdtt", names))
        process = own.process

        def noisy(denoiser: Any, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor:
            if isinstance(own, SpindleSampler):
                return own.corrupt(denoiser, x, alpha, noise)
            return process.corrupt(x, alpha, noise)

        return tuple(
            Phase(
                f"round {number}",
                ThroughTime(
                    teacher,
                    process,
                    noisy,
                    own,
                    method.schedule(),
                    self.stride(number),
                    self.teacher_steps,
                    self.divergence,
                ),
                number * self.round_steps,
                self.teacher,
            )
            for number in range(1, self.rounds + 1)
        )


def refusal(method: Method, sampler: object, name: str, needed: str) -> str:
    """Why a model cannot be distilled, and what can be done."""
    model = type(method).__name__
    start = f"{model} cannot be distilled with {name}, which needs a model of {needed}"
    if isinstance(sampler, Autoregressive):
        return f"{start}: an autoregressive model writes one token per step, whatever it learns"
    if isinstance(sampler, Analytic):
        return f"{start}: a score model answers with ratios, which have no divergence to learn from; train MDLM or Duo"
    if isinstance(sampler, (Ancestral, SpindleSampler)):
        other = "sdtt" if isinstance(sampler.process, Absorbing) else "dcd"
        return f"{start}: for {model} use --method {other}"
    return f"{start}: it is no discrete diffusion with a belief; train MDLM or Duo"


def suited(method: Method, num_tokens: int = 2) -> type[DCD] | type[SDTT]:
    """The kind of distillation for a method's noise."""
    own = method.sampler(num_tokens)
    return DCD if isinstance(own, (Ancestral, Analytic)) and isinstance(own.process, Uniform) else SDTT


DISTILLATIONS: dict[str, type[DCD] | type[SDTT]] = {"dcd": DCD, "sdtt": SDTT}
