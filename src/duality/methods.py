"""Named assemblies of process, schedule, network, objectives and sampler: what a recipe chooses and a table compares.

    Duo       uniform noise, the Rao-Blackwellised bound, with or without curriculum
    UDLM      uniform noise, the same bound alone
    MDLM      absorbing noise, the bound as a weighted cross-entropy
    SEDD      either noise, a network that answers with ratios
    D3PM      either noise, the bound of a chain with T steps
    AR        the autoregressive transformer
    Plaid, DiffusionLM, DiffusionBERT, BertMouth: see ``baselines/``

To add a model: one frozen dataclass that satisfies ``protocols.Method``, and its name in ``METHODS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from duality.baselines import BertMouth, DiffusionBERT, DiffusionLM, Plaid
from duality.denoiser import CausalDenoiser, MeanDenoiser, ScoreDenoiser, SubsDenoiser
from duality.objectives import Bound, DiscreteTime, MaskedBound, NextToken, ScoreEntropy, TemperedBound
from duality.processes import Absorbing, Uniform
from duality.protocols import Backbone, Phase, Schedule, Vocabulary
from duality.samplers import Analytic, Ancestral, Autoregressive
from duality.schedules import Cosine, Dual, LinearLogSnr, LinearSignal, LinearVariance, LogLinear, Polynomial

Times = LogLinear | Cosine | Polynomial
NoiseKind = Literal["absorbing", "uniform"]


def process_of(noise: NoiseKind, num_tokens: int) -> Uniform | Absorbing:
    """The process over a vocabulary; absorbing noise adds the mask to it."""
    return Uniform(num_tokens) if noise == "uniform" else Absorbing(num_tokens + 1)


def check_end(times: Times, name: str) -> None:
    """A network that is told -log(alpha) must not be told that of 0."""
    if not 0 < times.eps < 1:
        raise ValueError(
            f"method.{name}.eps is {times.eps}: the last signal level must be in (0, 1), because the network "
            "is told its logarithm"
        )


def check_mask_end(times: Times, name: str) -> None:
    """Absorbing noise must end at the mask: a token that is still shown is impossible under its prior."""
    if times.eps != 0:
        raise ValueError(
            f"method.{name}.eps is {times.eps}: absorbing noise must end at the mask, alpha = 0, or its bound is "
            f"infinite; set method.{name}.eps=0"
        )


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
    times: Times = LogLinear()

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
        check_end(self.times, "times")

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        return MeanDenoiser(backbone.build(vocabulary.num_tokens, num_labels=vocabulary.num_labels))

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        window = Dual(num_tokens, self.clock, self.alpha_min, self.alpha_max)
        tempered = Phase("curriculum", TemperedBound(window, self.tau), round(self.curriculum * steps))
        return (tempered, Phase("bound", Bound(Uniform(num_tokens), self.times), steps))

    def measure(self, num_tokens: int) -> Bound:
        return Bound(Uniform(num_tokens), Polynomial(eps=self.times.eps))

    def schedule(self) -> Schedule:
        return LogLinear(self.times.eps)

    def sampler(self, num_tokens: int) -> Ancestral:
        return Ancestral(Uniform(num_tokens))


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


@dataclass(frozen=True)
class SEDD:
    """Score entropy discrete diffusion, with absorbing or uniform noise."""

    noise: NoiseKind = "absorbing"
    times: Times = LogLinear()

    def __post_init__(self) -> None:
        check_end(self.times, "times")

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        process = process_of(self.noise, vocabulary.num_tokens)
        network = backbone.build(process.vocab_size, num_labels=vocabulary.num_labels)
        return ScoreDenoiser(network, process)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("score entropy", ScoreEntropy(process_of(self.noise, num_tokens), self.times), steps),)

    def measure(self, num_tokens: int) -> ScoreEntropy:
        # Absorbing noise is measured down to alpha = 0, where its prior term is 0 instead of infinite.
        schedule = Polynomial(eps=self.times.eps if self.noise == "uniform" else 0.0)
        return ScoreEntropy(process_of(self.noise, num_tokens), schedule)

    def schedule(self) -> Schedule:
        return LogLinear(self.times.eps)

    def sampler(self, num_tokens: int) -> Analytic:
        return Analytic(process_of(self.noise, num_tokens))


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


@dataclass(frozen=True)
class AR:
    """The autoregressive transformer; one state more than tokens, which begins a sequence."""

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        return CausalDenoiser(backbone.build(vocabulary.num_tokens + 1, causal=True, num_labels=vocabulary.num_labels))

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("next token", NextToken(), steps),)

    def measure(self, num_tokens: int) -> NextToken:
        return NextToken()

    def schedule(self) -> Schedule:
        return LogLinear(eps=0.0)

    def sampler(self, num_tokens: int) -> Autoregressive:
        return Autoregressive(begin=num_tokens)


METHODS: tuple[type, ...] = (
    Duo,
    UDLM,
    MDLM,
    SEDD,
    D3PM,
    AR,
    Plaid,
    BertMouth,
    DiffusionBERT,
    DiffusionLM,
)
