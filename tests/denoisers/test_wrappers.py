"""Wrappers change the belief, and every sampler uses the changed belief."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from support.oracles import uniform_toy
from torch import Tensor

from duality.denoisers.clamp import Clamped, ClampedScore
from duality.denoisers.conditioning import Guided
from duality.denoisers.filters import Temperature, TopP
from duality.denoisers.memo import Memoized
from duality.denoisers.readouts import MeanDenoiser, ScoreDenoiser, SubsDenoiser
from duality.diffusion import posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.fused import lazy
from duality.networks import SIZES
from duality.noise import Noise
from duality.protocols import Dropout, Latent, Process, Tail, TopK, Valid
from duality.samplers import SAMPLERS
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import generate
from duality.samplers.grids import LinearConstantLinear


class Fixed:
    """A belief that depends on nothing."""

    def __init__(self, log_p: Tensor):
        self.log_p = log_p

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        assert isinstance(z, Tensor)
        return self.log_p.expand(*z.shape, -1)


def test_temperature_is_a_power() -> None:
    p = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    got = Temperature(Fixed(p.log()), 0.5).log_probs(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1)).exp()
    assert torch.allclose(got, p**2 / (p**2).sum())
    for tiny in (1e-40, 1e-300):  # float32 has the first of them, nearly
        found = Temperature(Fixed(p.float().log()), tiny).log_probs(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1))
        assert found.exp().flatten().tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(("mass", "kept"), [(0.05, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (1.0, 4)])
def test_top_p_keeps_the_token_that_crosses_the_mass(mass: float, kept: int) -> None:
    p = torch.tensor([0.05, 0.5, 0.15, 0.3], dtype=torch.float64)
    got = TopP(Fixed(p.log()), mass).log_probs(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1)).exp()[0, 0]
    largest = p.sort(descending=True).indices[:kept]
    assert sorted(got.nonzero()[:, 0].tolist()) == sorted(largest.tolist())
    assert torch.allclose(got[largest], p[largest] / p[largest].sum())


@pytest.mark.parametrize("mass", [0.5, 0.9, 0.99])
def test_top_p_is_the_reference_one(golden: Path, mass: float) -> None:
    data = np.load(golden / "misc.npz")
    log_p = torch.from_numpy(data["nucleus/log_p_f64"])
    got = TopP(Fixed(log_p), mass).log_probs(torch.zeros(log_p.shape[:2], dtype=torch.int64), torch.ones(3)).exp()
    expected = torch.from_numpy(data[f"nucleus/out/{mass}"]).exp()
    assert torch.allclose(got, expected, atol=1e-9)


@pytest.mark.parametrize("process", [Uniform(6), Absorbing(6)], ids=str)
@pytest.mark.parametrize("tail", get_args(Tail))
def test_clamped_tokens_stay_and_reach_the_network_clean(process: Process, tail: Tail) -> None:
    torch.manual_seed(0)
    log_p = torch.log_softmax(torch.randn(6, dtype=torch.float64), -1)
    log_p[5] = -torch.inf
    seen: list[Tensor] = []

    class Recording(Fixed):
        def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
            assert isinstance(z, Tensor)
            seen.append(z)
            return super().log_probs(z, alpha)

    known = torch.tensor([True, False, False, True, False])
    tokens = torch.tensor([3, 0, 0, 1, 0])
    denoiser = Clamped(TopP(Recording(log_p), 0.9), tokens, known)
    got = generate(denoiser, LogLinear(), Ancestral(process), num=30, length=5, steps=6, tail=tail)
    assert (got[:, known] == tokens[known]).all()
    assert all((z[:, known] == tokens[known]).all() for z in seen)
    if tail == "ancestral":
        assert len(torch.unique(got[:, 1])) > 1


def wrapped(kind: object, process: Uniform | Absorbing, tokens: Tensor, known: Tensor) -> Any:
    """A class-conditional network of 9 states in all wrappers that its kind of model allows."""
    torch.manual_seed(0)
    backbone = SIZES["nano"]().build(9, num_labels=3)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    backbone.double().requires_grad_(False)
    if kind is Analytic:
        return ClampedScore(ScoreDenoiser(backbone, process), process, tokens, known)
    mean = SubsDenoiser(backbone, process) if isinstance(process, Absorbing) else MeanDenoiser(backbone)
    return Clamped(TopP(Temperature(Guided(mean, 1, 2.0), 0.8), 0.95), tokens, known)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("process", [Uniform(9), Absorbing(9)], ids=str)
@pytest.mark.parametrize("known", [(0, 1), (0, 3, 5)], ids=["prompt", "infill"])
@pytest.mark.parametrize("tail", get_args(Tail))
def test_every_sampler_works_with_every_wrapper(
    name: str, process: Uniform | Absorbing, known: tuple[int, ...], tail: Tail
) -> None:
    """Known tokens are unchanged at the end, and all others are tokens, never the mask token."""
    places = torch.zeros(6, dtype=torch.bool).index_fill(0, torch.tensor(known), True)
    tokens = torch.tensor([5, 2, 0, 7, 0, 1])
    kind = SAMPLERS[name]
    denoiser = wrapped(kind, process, tokens, places)
    # a psi sampler that adds much new noise
    sampler = kind(process, eta=0.5) if name.startswith("psi") else kind(process)
    for transformed in (denoiser,) if kind is Analytic else (denoiser, Memoized(denoiser)):
        got = generate(
            transformed, LogLinear(), sampler, num=20, length=6, steps=5, tail=tail, grid=LinearConstantLinear()
        )
        assert (got[:, places] == tokens[places]).all()
        assert int(got.min()) >= 0
        assert int(got.max()) < process.vocab_size - isinstance(process, Absorbing)
        assert tail != "ancestral" or len(torch.unique(got, dim=0)) > 1


@pytest.mark.parametrize("process", [Uniform(9), Absorbing(9)], ids=str)
def test_ratios_of_known_tokens_are_those_of_certainty(
    process: Uniform | Absorbing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each sample's own level and tokens, materialised and read four rows at a time."""
    monkeypatch.setattr(lazy, "chunk_rows", lambda *sizes: 4)
    noise, alpha = Noise.of(0, 0, torch.arange(3)), torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    tokens, known = torch.tensor([5, 2, 0, 7, 0, 1]), torch.tensor([True, False, False, True, True, False])
    score = wrapped(Analytic, process, tokens, known)
    z = process.sample_prior(6, noise)
    plain = score.denoiser.log_ratios(torch.where(known, tokens, z), alpha)
    sure = torch.nn.functional.one_hot(tokens, 9).double().expand(3, 6, 9)
    certain = posterior.log_ratios(sure, z, alpha[:, None], process.prior())
    expected = torch.where(known[:, None], certain, plain)
    assert torch.allclose(score.log_ratios(z, alpha), expected, atol=1e-12)
    read = [part.clone() for _, part in score.ratios(z, alpha).each(torch.arange(18))]
    assert torch.allclose(torch.cat(read).view(3, 6, 9), expected, atol=1e-12)


class Recorder(Fixed):
    """Records the arguments of its last call."""

    backbone = SimpleNamespace(num_labels=1)

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, *rest: Any) -> Tensor:
        self.last: tuple[Any, ...] = (z, alpha, valid)
        return super().log_probs(z, alpha)


def test_a_changed_sequence_is_computed_with_its_own_level_and_padding() -> None:
    recorder = Recorder(torch.zeros(5))
    memoized, z = Memoized(recorder), torch.arange(12).view(3, 4) % 5
    alpha, valid = torch.tensor([0.1, 0.2, 0.3]), torch.arange(4) < torch.tensor([[4], [3], [2]])
    memoized.belief(z, alpha, valid)
    memoized.belief(z.index_fill(0, torch.tensor([2]), 0), alpha, valid)
    assert all(torch.equal(given, whole[2:]) for given, whole in zip(recorder.last[1:], (alpha, valid)))
    assert memoized.belief(z[:2, :3], alpha[:2], valid[:2, :3]).vectors.shape == (2, 3, 5)


def test_guidance_mixes_in_float32_and_uses_the_padding() -> None:
    """A bfloat16 network's vectors are rounded once, after they are mixed."""
    torch.manual_seed(0)
    vectors = torch.randn(4, 6, 9).bfloat16()
    recorder, valid = Recorder(vectors), torch.arange(6) < torch.tensor([[6], [4]])
    recorder.log_p = vectors
    mixed = Guided(recorder, 0, 2.5).belief(torch.zeros(2, 6, dtype=torch.int64), torch.ones(2), valid).vectors
    conditioned, unconditioned = vectors.float().chunk(2)
    assert torch.equal(mixed, (unconditioned + 2.5 * (conditioned - unconditioned)).bfloat16())
    assert torch.equal(recorder.last[2], valid.repeat(2, 1))


@pytest.mark.parametrize("mass", [1.0, 0.999_999_999])
def test_nearly_all_of_the_mass_is_nearly_all_tokens(mass: float) -> None:
    """float32 probabilities of a large vocabulary do not sum exactly to 1; no token is lost by that."""
    torch.manual_seed(0)
    log_p = torch.log_softmax(torch.randn(20, 1, 50_257), -1)
    got = TopP(Fixed(log_p), mass).log_probs(torch.zeros(20, 1, dtype=torch.int64), torch.ones(20))
    assert int((got == -torch.inf).sum()) == 0


def test_top_p_bounds_the_tokens_that_are_drawn() -> None:
    log_p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    narrow = TopP(Fixed(log_p), 0.6)
    got = generate(narrow, LogLinear(), Ancestral(Uniform(4)), num=200, length=5, steps=8, tail="ancestral")
    assert set(got.flatten().tolist()) == {0, 1}


def test_bad_values_are_refused() -> None:
    _, _, oracle = uniform_toy()
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        TopP(oracle, 0.0)
    with pytest.raises(ValueError, match="positive"):
        Temperature(oracle, 0.0)
    mixture = TopK(torch.zeros(1, 2, 1, dtype=torch.int64), torch.ones(1, 2, 1))
    clamped = Clamped(oracle, torch.zeros(2), torch.zeros(2))
    with pytest.raises(TypeError, match="not a mixture"):
        clamped.log_probs(mixture, torch.ones(1))
