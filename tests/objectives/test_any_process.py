"""Objectives and samplers with a process that the library does not know, and compositions that are refused."""

from __future__ import annotations

import math

import pytest
import torch
from support.oracles import Oracle, OracleScore, all_states, data_law, entropy, law_of, total_variation
from support.unigram import Unigram
from torch import Tensor

from duality.denoisers.readouts import MeanDenoiser, ScoreDenoiser, SubsDenoiser
from duality.diffusion import closed_forms, draws, posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import Dual, LogLinear, Polynomial
from duality.methods.plaid import Plaid
from duality.networks import SIZES
from duality.noise import Noise
from duality.objectives.base import belief_in
from duality.objectives.consistency import Consistency
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.curriculum import TemperedBound
from duality.objectives.discrete_time import DiscreteTimeBound
from duality.objectives.next_token import NextToken
from duality.objectives.score_entropy import ScoreEntropy
from duality.objectives.through_time import ThroughTime
from duality.objectives.variational import Variational
from duality.protocols import AnyDenoiser, Measure, Process, Vocabulary
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.autoregressive import Autoregressive
from duality.samplers.gaussian import GaussianAncestral
from duality.samplers.generate import generate

PROCESS = Unigram(3)
LAW = data_law()
ORACLE = Oracle(LAW, PROCESS, leave_out=True)


def draw_data(count: int, noise: Noise) -> Tensor:
    pair = draws.categorical(LAW.flatten().expand(count, -1), noise.uniform("data"))
    return torch.stack([pair // 3, pair % 3], 1)


def test_the_bound_is_the_general_one() -> None:
    noise = Noise.of(5, 0, torch.arange(64))
    x, t = draw_data(64, noise), noise.uniform("t")
    schedule = LogLinear()
    nats = ContinuousTimeBound(PROCESS, schedule)(ORACLE, x, t, noise).nats
    alpha, slope = schedule.alpha(t), schedule.alpha_prime(t)
    z = PROCESS.corrupt(x, alpha, noise)
    ratios = posterior.log_ratios(ORACLE.log_probs(z, alpha).exp(), z, alpha[:, None], PROCESS.prior())
    expected = closed_forms.bound(ratios, x, z, alpha[:, None], slope[:, None], PROCESS.prior())
    assert torch.allclose(nats, expected, rtol=1e-10, atol=1e-12)
    scores = ScoreEntropy(PROCESS, schedule)(OracleScore(ORACLE, PROCESS), x, t, noise).nats
    assert torch.allclose(scores, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("measure", [ContinuousTimeBound(PROCESS, Polynomial(power=4.0, eps=1e-6))], ids=["bound"])
def test_the_oracles_bound_is_the_entropy(measure: Measure) -> None:
    """By Monte Carlo over data and noise, with low-discrepancy times."""
    count = 100_000
    noise = Noise.of(0, 0, torch.arange(count))
    t = (torch.arange(count, dtype=torch.float64) + noise.uniform("t")) / count
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    nats = measure(ORACLE, draw_data(count, noise), t[order], noise).nats.sum(-1)
    assert abs(float(nats.mean()) - entropy(LAW)) < 4.5 * float(nats.std()) / math.sqrt(count) + 1e-4


def test_the_chain_of_t_steps_is_the_divergence_of_dense_posteriors() -> None:
    noise = Noise.of(2, 0, torch.arange(40))
    x, t = draw_data(40, noise), noise.uniform("t")
    chain = DiscreteTimeBound(PROCESS, LogLinear(), 50)
    nats = chain(ORACLE, x, t, noise).nats
    step = 1 + (t * 50).long()
    now, later = chain.level(step), chain.level(step - 1)
    z = PROCESS.corrupt(x, now, noise)
    p, clean = ORACLE.log_probs(z, now).exp(), torch.nn.functional.one_hot(x, 3).double()
    true, model = (posterior.posterior(each, z, now[:, None], later[:, None], PROCESS.prior()) for each in (clean, p))
    gap = torch.where(true > 0, true * (true / model).log(), 0.0).sum(-1)
    assert torch.allclose(nats, 50 * gap, rtol=1e-9, atol=1e-10)


def test_the_sampler_has_the_exact_law_and_converges_to_the_data() -> None:
    count, steps, schedule = 40_000, 5, LogLinear()
    expected = law_of(Ancestral(PROCESS), ORACLE, schedule, steps).flatten()
    samplers: list[tuple[AnyDenoiser, Ancestral | Analytic]] = [
        (ORACLE, Ancestral(PROCESS)),
        (OracleScore(ORACLE, PROCESS), Analytic(PROCESS)),
    ]
    for denoiser, sampler in samplers:
        tokens = generate(denoiser, schedule, sampler, num=count, length=2, steps=steps, batch_size=count)
        counts = torch.bincount(tokens[:, 0] * 3 + tokens[:, 1], minlength=9).double()
        statistic = float(((counts - count * expected) ** 2 / (count * expected)).sum())
        assert abs(statistic - 8) < 4.5 * math.sqrt(2 * 8)
    errors = [total_variation(law_of(Ancestral(PROCESS), ORACLE, LogLinear(1e-9), n), LAW) for n in (16, 64, 256)]
    assert errors[2] < errors[1] / 3 < errors[0] / 9


@pytest.mark.slow
def test_it_trains() -> None:
    """A network learns the toy language under unigram noise: its bound falls towards the entropy."""
    torch.manual_seed(0)
    denoiser = MeanDenoiser(SIZES["nano"]().build(3))
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=3e-3)
    objective = ContinuousTimeBound(PROCESS, Polynomial())
    losses = []
    for step in range(60):
        noise = Noise.of(1, step, torch.arange(128))
        t = (torch.arange(128, dtype=torch.float64) + noise.uniform("t")) / 128
        loss = objective(denoiser, draw_data(128, noise), t, noise).total / 256
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    assert last < first - 0.05
    assert last > entropy(LAW) / 2 - 0.1


# --- compositions that have no meaning are refused


def network(num_states: int, **options: int) -> MeanDenoiser:
    return MeanDenoiser(SIZES["nano"]().build(num_states, **options))


def batch(num_tokens: int = 10) -> tuple[Tensor, Tensor, Noise]:
    noise = Noise.of(0, 0, torch.arange(4))
    return noise.integers("x", num_tokens, 6), noise.uniform("t"), noise


@pytest.mark.parametrize("process", [Uniform(11), Absorbing(11), Unigram(11)], ids=str)
def test_one_objective_is_right_for_every_process(process: Process) -> None:
    """The uniform belief has the same bound, log K of the tokens, for any noise."""
    backbone = SIZES["nano"]().build(11)
    denoiser = MeanDenoiser(backbone) if process.mask_id is None else SubsDenoiser(backbone, process)
    count = 4000
    noise = Noise.of(3, 0, torch.arange(count))
    tokens = 11 if process.mask_id is None else 10
    x, t = noise.integers("x", tokens, 4), (torch.arange(count, dtype=torch.float64) + 0.5) / count
    with torch.no_grad():
        nats = ContinuousTimeBound(process, Polynomial(power=3.0, eps=0.0))(denoiser, x, t, noise).nats
    error = float(nats.mean(-1).std()) / math.sqrt(count)
    assert abs(float(nats.mean()) - math.log(tokens)) < 4.5 * error + 0.02


@pytest.mark.parametrize("make", [ContinuousTimeBound, DiscreteTimeBound])
def test_a_belief_in_the_mask_token_is_refused(make: type) -> None:
    x, t, noise = batch()
    with pytest.raises(ValueError, match="SubsDenoiser, which excludes it"):
        make(Absorbing(11), LogLinear(0.0))(network(11), x, t, noise)
    with pytest.raises(ValueError, match="SubsDenoiser, which excludes it"):  # more states than the vectors are wide
        make(Absorbing(101), LogLinear(0.0))(network(101), x, t, noise)


@pytest.mark.parametrize("make", [ContinuousTimeBound, DiscreteTimeBound])
def test_a_network_with_other_states_is_refused(make: type) -> None:
    x, t, noise = batch()
    with pytest.raises(ValueError, match=r"has 12 states and .* 11: build the network with 11"):
        make(Uniform(11), LogLinear())(network(12), x, t, noise)
    for objective in (TemperedBound(Dual(11)), Consistency(network(12), Dual(11), 0.1)):
        with pytest.raises(ValueError, match=r"has 12 states and .* 11: build the network with 11"):
            objective(network(12), x, t, noise)
    score = ScoreDenoiser(SIZES["nano"]().build(12), Uniform(12))
    with pytest.raises(ValueError, match=r"has 12 states and .* 11: build the network with 11"):
        ScoreEntropy(Uniform(11), LogLinear())(score, x, t, noise)


def test_an_objective_refuses_a_model_of_another_kind() -> None:
    x, t, noise = batch()
    score = ScoreDenoiser(SIZES["nano"]().build(11), Uniform(11))
    vectors = Plaid().network(SIZES["nano"](), Vocabulary(11))
    for objective in (ContinuousTimeBound(Uniform(11), LogLinear()), NextToken()):
        for denoiser in (score, vectors):
            with pytest.raises(ValueError, match="a belief about each token is needed"):
                objective(denoiser, x, t, noise)
    for denoiser in (network(11), vectors):
        with pytest.raises(ValueError, match="the ratios of a score model are needed"):
            ScoreEntropy(Uniform(11), LogLinear())(denoiser, x, t, noise)
    with pytest.raises(ValueError, match="a Gaussian model is needed"):
        Variational()(network(11), x, t, noise)
    with pytest.raises(ValueError, match="needs a PlaidDenoiser, got a MeanDenoiser"):
        Plaid().phases(11, 1)[0].objective(network(11), x, t, noise)


def test_a_sampler_refuses_a_model_of_another_kind() -> None:
    noise = Noise.of(0, 0, torch.arange(2))
    score = ScoreDenoiser(SIZES["nano"]().build(11), Uniform(11))
    with pytest.raises(ValueError, match="ancestral sampler needs probabilities"):
        Ancestral(Uniform(11)).start(score, 4, 2, noise)
    with pytest.raises(ValueError, match="needs the ratios of a score model"):
        Analytic(Uniform(11)).start(network(11), 4, 2, noise)
    with pytest.raises(ValueError, match="needs a causal network"):
        Autoregressive(11).start(network(11), 4, 4, noise)
    with pytest.raises(ValueError, match="moves vectors"):
        GaussianAncestral().start(network(11), 4, 2, noise)


def test_a_readout_refuses_a_process_without_its_mask_token() -> None:
    with pytest.raises(ValueError, match="SubsDenoiser needs one"):
        SubsDenoiser(SIZES["nano"]().build(11), Uniform(11))
    with pytest.raises(ValueError, match="no mask token: ThroughTime needs absorbing noise"):
        ThroughTime(network(11), Ancestral(Uniform(11)), LogLinear(), 0.1)


def test_a_materialised_belief_that_excludes_the_mask_token_is_accepted() -> None:
    process = Absorbing(4)
    oracle = Oracle(LAW, process, leave_out=False)
    z, alpha = all_states(4), torch.full((16,), 0.5, dtype=torch.float64)
    assert belief_in(process, oracle, z, alpha).num_states == 4
