"""Every bound of a discrete process with a perfect model is the entropy of the toy; its samplers have the toy's law."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest
import torch
from support.oracles import (
    LENGTH,
    OracleScore,
    absorbing_toy,
    all_states,
    data_law,
    entropy,
    gauss_legendre,
    total_variation,
    uniform_toy,
)
from torch import Tensor

from duality.diffusion import posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.fused.process_formulas import CLOSED_FORMS, _AbsorbingFormulas, _UniformFormulas
from duality.noise import Noise
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.discrete_time import DiscreteTimeBound
from duality.objectives.next_token import NextToken
from duality.objectives.score_entropy import ScoreEntropy
from duality.protocols import Dropout, Latent, Measure, Prefix, Process, Tail, Valid
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.autoregressive import Autoregressive
from duality.samplers.generate import generate, levels


@dataclass(frozen=True)
class FixedUniform(Uniform):
    """Uniform noise that always gives the same noisy tokens, so that an expectation can be written as a sum."""

    z: Any = None

    def corrupt(self, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor:
        return self.z  # type: ignore[no-any-return]


@dataclass(frozen=True)
class FixedAbsorbing(Absorbing):
    z: Any = None

    def corrupt(self, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor:
        return self.z  # type: ignore[no-any-return]


def expectation(make: Callable[[Any], Measure], denoiser: Any, process: Process, t: float, alpha: float) -> float:
    """E_x E_z of the measure at t, by summing over all clean and all noisy sequences."""
    law, num_states = data_law(), process.vocab_size
    pairs = list(itertools.product(all_states(len(law)).tolist(), all_states(num_states).tolist()))
    x, z = (torch.tensor([pair[i] for pair in pairs]) for i in (0, 1))
    level = torch.tensor(alpha, dtype=torch.float64)
    noisy = posterior.marginal(torch.eye(num_states, dtype=torch.float64), level.expand(num_states), process.prior())
    weight = law[x[:, 0], x[:, 1]] * noisy[x[:, 0], z[:, 0]] * noisy[x[:, 1], z[:, 1]]
    possible = weight > 0
    x, z, weight = x[possible], z[possible], weight[possible]
    fixed = FixedUniform(num_states, z) if isinstance(process, Uniform) else FixedAbsorbing(num_states, z)
    times = torch.full((len(x),), t, dtype=torch.float64)
    nats = make(fixed)(denoiser, x, times, Noise.of(0, 0, torch.arange(len(x)))).nats
    return float((weight * nats.sum(-1)).sum())


@pytest.fixture(params=["closed form", "general form"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here holds for the closed forms, which are registered by type, and for the general ones."""
    if request.param == "closed form":
        monkeypatch.setitem(CLOSED_FORMS, FixedUniform, _UniformFormulas)
        monkeypatch.setitem(CLOSED_FORMS, FixedAbsorbing, _AbsorbingFormulas)
    else:
        for kind in (Uniform, Absorbing):
            monkeypatch.delitem(CLOSED_FORMS, kind)


MODELS: dict[str, tuple[Callable[[Any], Measure], Any]] = {
    "Duo": (lambda process: ContinuousTimeBound(process, LogLinear(0.0)), uniform_toy),
    "SEDD uniform": (lambda process: ScoreEntropy(process, LogLinear(0.0)), uniform_toy),
    "MDLM": (lambda process: ContinuousTimeBound(process, LogLinear(0.0)), absorbing_toy),
    "SEDD absorb": (lambda process: ScoreEntropy(process, LogLinear(0.0)), absorbing_toy),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_continuous_bound_is_the_entropy(name: str) -> None:
    make, toy = MODELS[name]
    law, process, oracle = toy()
    denoiser = OracleScore(oracle, process) if name.startswith("SEDD") else oracle
    # t = s^4: the uniform bound has a logarithm at t = 0, which plain Gauss-Legendre resolves to 5e-4 only
    nodes, weights = gauss_legendre(40)
    total = sum(
        float(weight)
        * 4
        * float(node) ** 3
        * expectation(make, denoiser, process, float(node) ** 4, 1 - float(node) ** 4)
        for node, weight in zip(nodes, weights)
    )
    assert total == pytest.approx(entropy(law), abs=1e-6)
    x = all_states(3)
    ends = make(process).ends(denoiser, x, Noise.of(0, 0, torch.arange(len(x))))
    assert float(ends.prior.abs().max()) < 1e-12
    assert float(ends.reconstruction.abs().max()) == 0


@pytest.mark.parametrize("toy", [uniform_toy, absorbing_toy])
def test_the_bound_of_the_chain_of_t_steps_tends_to_the_entropy(toy: Any) -> None:
    """All T terms with the perfect denoiser exceed the entropy by an amount that falls as 1/T."""
    law, process, oracle = toy()
    excess = []
    for steps in (8, 32, 128):
        total = sum(
            expectation(
                lambda fixed, steps=steps: DiscreteTimeBound(fixed, LogLinear(0.0), steps),  # type: ignore[misc]
                oracle,
                process,
                (step - 0.5) / steps,
                1 - step / steps,
            )
            for step in range(1, steps + 1)
        )
        excess.append(total / steps - entropy(law))
    assert min(excess) > 0
    assert excess[0] / excess[1] == pytest.approx(4, rel=0.25)
    assert excess[1] / excess[2] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("toy", [uniform_toy, absorbing_toy])
def test_the_reconstruction_can_be_a_term_of_its_own(toy: Any) -> None:
    """Training draws i = 1 .. T; evaluation draws 2 .. T and adds the term of i = 1 as an end. The same sum."""
    _, process, oracle = toy()
    steps = 5
    x = all_states(3)
    noise = Noise.of(3, 0, torch.arange(len(x)))
    together, apart = (DiscreteTimeBound(process, LogLinear(0.0), steps, separate=flag) for flag in (False, True))
    for index in range(2, steps + 1):
        one = together(oracle, x, torch.full((len(x),), (index - 0.5) / steps, dtype=torch.float64), noise)
        t = (index - 2 + 0.5) / (steps - 1)
        other = apart(oracle, x, torch.full((len(x),), t, dtype=torch.float64), noise)
        assert torch.allclose(one.nats / steps, other.nats / (steps - 1), atol=1e-13)
    first = together(oracle, x, torch.full((len(x),), 0.5 / steps, dtype=torch.float64), noise.fold("reconstruction"))
    assert torch.allclose(first.nats / steps, apart.ends(oracle, x, noise).reconstruction, atol=1e-13)
    alone = DiscreteTimeBound(process, LogLinear(0.0), 1, separate=True)
    assert float(alone(oracle, x, torch.rand(len(x)), noise).nats.sum()) == 0


@dataclass(frozen=True)
class OracleCausal:
    """p(x_1) and p(x_2 | x_1) of the toy, whole sequences or one token after a prefix."""

    backbone: Any

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        law = data_law()
        first, second = law.sum(1).log(), (law / law.sum(1, keepdim=True)).log()
        if isinstance(z, Prefix):
            return first.expand(len(z.ids), 1, -1) if z.position == 0 else second[z.ids]
        assert isinstance(z, Tensor)
        return torch.stack([first.expand(len(z), -1), second[z[:, 0]]], 1)


class NoCache:
    causal = True

    def empty_cache(self, batch: int, length: int) -> None:
        return None


def test_the_autoregressive_likelihood_is_exact_and_so_is_its_sampler() -> None:
    law, oracle = data_law(), OracleCausal(NoCache())
    x = all_states(3)
    noise = Noise.of(0, 0, torch.arange(len(x)))
    nats = NextToken()(oracle, x, torch.rand(len(x)), noise).nats.sum(-1)
    assert torch.allclose(nats, -law.flatten().log(), atol=1e-13)
    count = 60_000
    tokens = generate(
        oracle, LogLinear(0.0), Autoregressive(3), num=count, length=LENGTH, steps=LENGTH, batch_size=count
    )
    rate = torch.bincount(tokens[:, 0] * 3 + tokens[:, 1], minlength=9) / count
    expected = law.flatten()
    assert ((rate - expected).abs() < 4.5 * (expected * (1 - expected) / count).sqrt()).all()


def exact_law(kind: type, process: Process, denoiser: Any, steps: int) -> Tensor:
    """The sampler's law, as a product of the kernels that it draws from."""
    num_states, prior = process.vocab_size, process.prior()
    states = all_states(num_states)
    current = prior[states[:, 0]] * prior[states[:, 1]]
    alphas = levels(LogLinear(eps=1e-9), steps)
    for alpha_t, alpha_s in zip(alphas[:-1], alphas[1:]):
        level_t, level_s = alpha_t.expand(len(states)), alpha_s.expand(len(states))
        if kind is Analytic:
            ratios = denoiser.log_ratios(states, level_t)
            kernel = posterior.analytic(ratios, states, level_t[:, None], level_s[:, None], prior)
        else:
            p = denoiser.log_probs(states, level_t).exp()
            kernel = posterior.posterior(p, states, level_t[:, None], level_s[:, None], prior)
        # states that cannot be reached have no kernel (0 / 0) and no probability
        kernel = torch.nan_to_num(kernel / kernel.sum(-1, keepdim=True))
        current = (current[:, None, None] * kernel[:, 0, :, None] * kernel[:, 1, None, :]).sum(0).flatten()
    return current.view(num_states, num_states)[:3, :3]


@pytest.mark.parametrize("toy", [uniform_toy, absorbing_toy])
@pytest.mark.parametrize("kind", [Ancestral, Analytic])
def test_the_methods_own_samplers_converge_at_first_order(kind: type, toy: Any) -> None:
    """Psi samplers, which converge as eta falls, are tested in samplers/test_psi.py."""
    law, process, oracle = toy()
    denoiser = OracleScore(oracle, process) if kind is Analytic else oracle
    errors = [total_variation(exact_law(kind, process, denoiser, steps), law) for steps in (16, 64, 256)]
    assert errors[0] < 0.06
    for coarse, fine in itertools.pairwise(errors):
        assert 3.3 < coarse / fine < 4.7


def test_samplers_refuse_models_that_they_cannot_use() -> None:
    _, process, oracle = uniform_toy()
    score = OracleScore(oracle, process)
    with pytest.raises(ValueError, match="analytic sampler"):
        generate(score, LogLinear(), Ancestral(process), num=1, length=2, steps=2)
    with pytest.raises(ValueError, match="ancestral"):
        generate(oracle, LogLinear(), Analytic(process), num=1, length=2, steps=2)
    with pytest.raises(ValueError, match="2 tokens take 2 steps"):
        generate(OracleCausal(NoCache()), LogLinear(), Autoregressive(3), num=1, length=2, steps=5)


@pytest.mark.parametrize("tail", get_args(Tail))
def test_the_analytic_sampler_never_returns_the_mask_token(tail: Tail) -> None:
    """Also with random scores."""

    class Random:
        def log_ratios(self, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
            torch.manual_seed(0)
            # small ratios: most of the mass stays at the mask token unless it is excluded
            return (torch.randn(*z.shape, 4, dtype=torch.float64) - 5).scatter(-1, z[..., None], 0.0)

    masks, level = torch.full((50, 6), 3), torch.full((50,), 0.67, dtype=torch.float64)
    sampler, noise = Analytic(Absorbing(4)), Noise.of(0, 0, torch.arange(50))
    ratios, one = Random().log_ratios(masks, level), torch.ones_like(level)
    law = posterior.analytic(ratios, masks, level[:, None], one[:, None], Absorbing(4).prior())
    assert float(law[..., 3].min()) > 0.5
    assert int(sampler.last(Random(), masks, level, tail, noise).max()) <= 2


def test_bad_chains_are_refused() -> None:
    for steps in (0, -3):
        with pytest.raises(ValueError, match="at least 1 step"):
            DiscreteTimeBound(Uniform(3), LogLinear(), steps)
