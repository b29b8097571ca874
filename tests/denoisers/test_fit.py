"""Objectives and samplers refuse a denoiser that does not fit their process, before the network is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from duality.denoisers.filters import Temperature
from duality.denoisers.readouts import CausalDenoiser, MeanDenoiser, ScoreDenoiser, SubsDenoiser
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.methods.bert_mouth import _MaskedTokens as MaskedTokens
from duality.methods.bert_mouth import _PseudoLikelihood as PseudoLikelihood
from duality.networks import SIZES
from duality.noise import Noise
from duality.objectives.consistency import Consistency
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.curriculum import TemperedBound
from duality.objectives.discrete_time import DiscreteTimeBound
from duality.objectives.next_token import NextToken
from duality.protocols import AnyDenoiser, Objective, Process
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import generate
from duality.samplers.psi import Psi

NOISE = Noise.of(0, 0, torch.arange(4))
SUBS = SubsDenoiser(SIZES["nano"]().build(11), Absorbing(11))
MEAN = MeanDenoiser(SIZES["nano"]().build(11))
CAUSAL = CausalDenoiser(SIZES["nano"]().build(12, causal=True))
STATES = r"the denoiser has 11 states and .*: build the network with"

# A denoiser, a process that it does not fit, and the words of the refusal.
MISFITS = [
    (MEAN, Absorbing(11), "samples would contain mask tokens: use SubsDenoiser"),
    (MEAN, Uniform(5), STATES),
    (MEAN, Uniform(20), STATES),
    (SUBS, Uniform(11), r"built for Absorbing\(.*11.*\), and it is used with Uniform"),
    (SUBS, Absorbing(20), STATES),
    (CAUSAL, Uniform(11), "use its own objective"),
    (Temperature(MEAN, 0.5), Uniform(20), STATES),  # through a wrapper
]


@pytest.mark.parametrize(("denoiser", "process", "words"), MISFITS)
def test_a_sampler_refuses_a_denoiser_that_does_not_fit(denoiser: AnyDenoiser, process: Process, words: str) -> None:
    for sampler in (Ancestral(process), Psi(process)):
        with pytest.raises(ValueError, match=words):
            generate(denoiser, LogLinear(), sampler, num=4, length=6, steps=2)


@pytest.mark.parametrize(("denoiser", "process", "words"), MISFITS)
def test_an_objective_refuses_a_denoiser_that_does_not_fit(denoiser: AnyDenoiser, process: Process, words: str) -> None:
    x, t = NOISE.integers("x", 4, 6), NOISE.uniform("t")
    for objective in (ContinuousTimeBound(process, LogLinear(0.0)), DiscreteTimeBound(process, LogLinear(0.0))):
        with pytest.raises(ValueError, match=words):
            objective(denoiser, x, t, NOISE)


def test_ratios_of_another_noise_are_refused() -> None:
    score = ScoreDenoiser(SIZES["nano"]().build(11), Absorbing(11))
    with pytest.raises(ValueError, match="it is used with Uniform"):
        Analytic(Uniform(11)).start(score, 6, 2, NOISE)


def test_a_denoiser_without_a_network_is_known_by_its_answers() -> None:
    class Table:
        def log_probs(self, z: Any, alpha: torch.Tensor, valid: object = None, dropout: object = None) -> torch.Tensor:
            return torch.zeros(*z.shape, 11, dtype=torch.float64).log_softmax(-1)

    with pytest.raises(ValueError, match=STATES):
        generate(Table(), LogLinear(), Ancestral(Uniform(5)), num=4, length=6, steps=2)


def test_gaussian_latents_need_a_schedule_of_gaussian_noise() -> None:
    with pytest.raises(ValueError, match=r"use Dual\(vocab_size\)"):
        TemperedBound(LogLinear())  # type: ignore[arg-type] # the mistake is the test
    with pytest.raises(ValueError, match=r"use Dual\(vocab_size\)"):
        Consistency(MEAN, LogLinear(), 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("denoiser", [MEAN, SUBS, Temperature(MEAN, 0.5)])
def test_next_tokens_need_a_causal_network(denoiser: AnyDenoiser) -> None:
    with pytest.raises(ValueError, match="use CausalDenoiser"):
        NextToken()(denoiser, NOISE.integers("x", 4, 6), NOISE.uniform("t"), NOISE)


@pytest.mark.parametrize("objective", [MaskedTokens(Absorbing(11)), PseudoLikelihood(Absorbing(11))])
def test_the_objectives_of_bert_mouth_refuse_another_denoiser(objective: Objective) -> None:
    with pytest.raises(ValueError, match="use SubsDenoiser"):
        objective(MEAN, NOISE.integers("x", 4, 6), NOISE.uniform("t"), NOISE)
