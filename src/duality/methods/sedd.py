"""SEDD."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from duality.denoisers.readouts import ScoreDenoiser
from duality.diffusion.schedules import LogLinear, Polynomial
from duality.methods.base import NoiseKind, Times, check_end, process_of
from duality.objectives.score_entropy import ScoreEntropy
from duality.protocols import Backbone, Phase, Schedule, Vocabulary
from duality.samplers.analytic import Analytic


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
