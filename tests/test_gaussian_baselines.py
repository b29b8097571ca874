"""Gaussian models (Plaid, Diffusion-LM): Bayes' rule, the bound of an oracle, the sampler's exact law, and training."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import data_law, entropy, gauss_legendre, total_variation
from torch import Tensor

from duality import vlb
from duality.backbones.dit import DiT
from duality.baselines import plaid
from duality.baselines.diffusion_lm import LEAST, DiffusionLM, DiffusionLMDenoiser, SimpleLoss, sqrt_gamma
from duality.baselines.plaid import LearnedSchedule, Plaid, PlaidBound, PlaidDenoiser
from duality.generate import Tail, generate
from duality.noise import Noise, stratified_times
from duality.protocols import Denoiser, Measure, Method, Objective, Sampler, Score, Vocabulary
from duality.schedules import LogLinear

NETWORK = DiT(width=32, depth=1, heads=2, time_width=16, dropout=0.0)
TAILS: tuple[Tail, ...] = ("greedy", "ancestral")
METHODS: list[Method] = [
    Plaid(embedding_width=8),
    Plaid(embedding_width=8, self_conditioning=True),
    DiffusionLM(embedding_width=8),
]


@dataclass(frozen=True)
class Oracle:
    """The exact model of ``sequences`` (N, L) that occur with the chances ``law``: tokens are rows of ``table``.

    gamma runs from ``first`` to ``final`` as t^``power``.
    """

    sequences: Tensor
    law: Tensor
    table: Tensor
    first: float
    final: float
    power: float = 1.0

    def embeddings(self) -> Tensor:
        return self.table

    def gamma(self, t: Tensor) -> tuple[Tensor, Tensor]:
        whole = self.final - self.first
        return self.first + whole * t**self.power, whole * self.power * t ** (self.power - 1)

    def belief(self, z: Tensor, gamma: Tensor) -> Tensor:
        """log p(x_l | z), (B, L, K)."""
        alpha, sigma = (level[:, None, None, None] for level in vlb.levels(gamma))
        scores = -(z[:, :, None] - alpha * self.table).square().sum(-1) / (2 * sigma[..., 0] ** 2)
        places = torch.arange(self.sequences.shape[1])
        joint = torch.softmax(scores[:, places, self.sequences].sum(-1) + self.law.log(), -1)
        marginal = torch.einsum("bn,nlk->blk", joint, F.one_hot(self.sequences, len(self.table)).double())
        return marginal.clamp_min(1e-300).log()

    def predict(
        self,
        z: Tensor,
        gamma: Tensor,
        mask: Tensor | None = None,
        dropout: Noise | None = None,
        guess: Tensor | None = None,
    ) -> vlb.Prediction:
        logits = self.belief(z, gamma)
        return vlb.Prediction(logits.exp() @ self.table, logits)

    def decode(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.belief(z, torch.full((len(z),), self.first, dtype=torch.float64))


def one_token(first: float = -4.0, final: float = 1.0, power: float = 1.0) -> Oracle:
    """Three tokens on a line, sequences of one."""
    law = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    table = torch.tensor([[-1.2], [0.1], [1.0]], dtype=torch.float64)
    return Oracle(torch.arange(3)[:, None], law, table, first, final, power)


def line(count: int, reach: float) -> tuple[Tensor, float]:
    """Points of the line and their spacing; a sum over them integrates smooth densities to rounding."""
    points = torch.linspace(-reach, reach, count, dtype=torch.float64)
    return points, float(points[1] - points[0])


def normal_density(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))


def double(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


# The formulas


@pytest.mark.parametrize(("gamma_s", "gamma_t"), [(-3.0, -2.9), (-1.0, 4.0), (2.0, 9.0)])
def test_posterior_is_bayes_rule_for_gaussians(gamma_s: float, gamma_t: float) -> None:
    z, e = torch.randn(2, 1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alpha_t, sigma_t = vlb.levels(double(gamma_t))
    alpha_s, sigma_s = vlb.levels(double(gamma_s))
    ratio = alpha_t / alpha_s
    added = sigma_t**2 - ratio**2 * sigma_s**2  # z_t = ratio z_s + noise of this variance
    variance = 1 / (1 / sigma_s**2 + ratio**2 / added)
    expected = variance * (alpha_s * e / sigma_s**2 + ratio * z / added)
    mean, deviation = vlb.posterior(z, e, double(gamma_t), double(gamma_s))
    assert torch.allclose(mean, expected, rtol=1e-11)
    assert torch.allclose(deviation.flatten() ** 2, variance, rtol=1e-11)


@pytest.mark.parametrize("gamma", [-2.0, 0.5, 8.0])
def test_prior_term_is_the_divergence(gamma: float) -> None:
    e = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alpha, sigma = vlb.levels(double(gamma))
    noisy = torch.distributions.Normal(alpha * e, sigma.expand_as(e))
    expected = torch.distributions.kl_divergence(noisy, torch.distributions.Normal(0.0, 1.0)).sum(-1)
    assert torch.allclose(vlb.prior_nats(e, torch.tensor(gamma, dtype=torch.float64)), expected, rtol=1e-9)


def exact_bound(oracle: Oracle, bias: float = 0.0) -> float:
    """E over x, t and z of the three terms, one-token oracle; ``bias`` is added to its prediction."""
    points, step = line(3001, 9.0)
    z = points[:, None, None]
    prior = vlb.prior_nats(oracle.table[:, None], oracle.gamma(double(1.0))[0][0])[:, 0]
    first = double(oracle.first).expand(len(z))
    total = float((oracle.law * prior).sum())
    for token in range(3):
        e = oracle.table[token].expand(len(z), 1, 1)
        x = torch.full((len(z), 1), token)
        for t, weight in zip(*gauss_legendre(40)):
            gamma, slope = (part.expand(len(z)) for part in oracle.gamma(t[None]))
            alpha, sigma = vlb.levels(gamma)
            nats = vlb.diffusion_nats(e, oracle.predict(z, gamma).x_hat + bias, gamma, slope)[:, 0]
            chance = normal_density(points, alpha * oracle.table[token], sigma) * step
            total += float(oracle.law[token] * weight * (chance * nats).sum())
        alpha, sigma = vlb.levels(first)
        chance = normal_density(points, alpha * oracle.table[token], sigma) * step
        total += float(oracle.law[token] * (chance * vlb.cross_entropy(oracle.decode(z), x)[:, 0]).sum())
    return total


@pytest.mark.parametrize("power", [1.0, 1.7])
def test_bound_of_the_oracle_is_the_entropy_and_what_the_prior_misses(power: float) -> None:
    """The diffusion term is I(x; z_0) - I(x; z_1), whatever the pace; with the ends: H(x) + KL(q(z_1) || N(0, 1))."""
    oracle = one_token(power=power)
    points, step = line(3001, 9.0)
    alpha, sigma = vlb.levels(double(oracle.final))
    last = (normal_density(points[:, None], alpha * oracle.table[:, 0], sigma) * oracle.law).sum(-1)
    missed = float((last * (last / normal_density(points, torch.zeros(1), torch.ones(1))).log()).sum()) * step
    assert missed > 0.005
    assert exact_bound(oracle) == pytest.approx(entropy(oracle.law) + missed, abs=2e-6)
    assert exact_bound(oracle, bias=0.1) > entropy(oracle.law) + missed + 0.1


@pytest.mark.parametrize("even", [False, True])
def test_the_measure_estimates_the_entropy_of_correlated_pairs(even: bool) -> None:
    law = data_law()
    pairs = torch.tensor(list(itertools.product(range(3), repeat=2)))
    table = torch.tensor([[1.0, 0.0], [-0.6, 0.8], [-0.3, -1.1]], dtype=torch.float64)
    oracle = Oracle(pairs, law.flatten(), table, first=-6.0, final=9.0, power=1.5)
    count = 40_000
    noise = Noise.of(0, 0, torch.arange(count))
    x = pairs[torch.multinomial(law.flatten(), count, replacement=True, generator=torch.Generator().manual_seed(0))]
    measure: Measure = vlb.Variational(even=even)
    ends = measure.ends(oracle, x, noise)
    nats = measure(oracle, x, stratified_times(0, 0, count), noise).nats + ends.prior + ends.reconstruction
    per_sequence = nats.sum(-1)
    error = float(per_sequence.std()) / math.sqrt(count)
    assert error < 0.05
    assert abs(float(per_sequence.mean()) - entropy(law)) < 4.5 * error


# The sampler


def law_of(oracle: Oracle, steps: int) -> Tensor:
    """The sampler's exact output law: the density of z through its Gaussian kernels, then the belief at t = 1/steps."""
    points, step = line(801, 6.0)
    z = points[:, None, None]
    density = normal_density(points, torch.zeros(1), torch.ones(1))
    times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    for t, s in zip(times[:-2], times[1:-1]):
        gamma_t, gamma_s = (oracle.gamma(time.expand(len(z)))[0] for time in (t, s))
        mean, deviation = vlb.posterior(z, oracle.predict(z, gamma_t).x_hat, gamma_t, gamma_s)
        density = (density[:, None] * normal_density(points, mean[:, 0], deviation[:, 0])).sum(0) * step
    belief = oracle.predict(z, oracle.gamma(times[-2].expand(len(z)))[0]).logits.exp()[:, 0]
    return (density[:, None] * belief).sum(0) * step


def test_exact_law_converges_at_first_order() -> None:
    oracle = one_token(final=14.0)
    errors = []
    for steps in (16, 32, 64):
        got = law_of(oracle, steps)
        assert float(got.sum()) == pytest.approx(1, abs=1e-5)
        errors.append(total_variation(got, oracle.law))
    assert errors[0] > 0.05
    for coarse, fine in zip(errors[:-1], errors[1:]):
        assert 1.8 < coarse / fine < 2.4  # twice the steps, half of the error


def test_generate_draws_from_the_exact_law() -> None:
    """The real loop and sampler at 8 steps, where the law is not the data's."""
    oracle, count, steps = one_token(final=14.0), 100_000, 8
    expected = law_of(oracle, steps)
    assert total_variation(expected, oracle.law) > 0.1
    sampler: Sampler = vlb.Posterior()
    tokens = generate(oracle, LogLinear(0.0), sampler, num=count, length=1, steps=steps, batch_size=count)
    rate = torch.bincount(tokens.flatten(), minlength=3) / count
    assert ((rate - expected).abs() < 4.5 * (expected * (1 - expected) / count).sqrt()).all()


def test_clamping_rounds_the_prediction_to_an_embedding() -> None:
    oracle = one_token(first=-40.0, final=2.0)
    noise = Noise.of(0, 0, torch.arange(50))
    noisy, clean = torch.zeros(50, dtype=torch.float64), torch.ones(50, dtype=torch.float64)
    state = vlb.Posterior().start(oracle, 1, 2, noise)
    free = vlb.Posterior().step(oracle, state, noisy, clean, noise)
    clamped = vlb.Posterior(clamp=True).step(oracle, state, noisy, clean, noise)
    assert torch.allclose(free.z, free.guess, atol=1e-6)
    distance = (clamped.z - oracle.table[:, 0]).abs()
    assert float(distance.min(-1).values.max()) < 1e-6
    assert torch.equal(distance.argmin(-1), vlb.Posterior().tokens(oracle, clamped))
    assert float((free.z - clamped.z).abs().max()) > 0.05


# The schedules


def test_learned_schedule_rises_from_0_to_1_and_knows_its_slope() -> None:
    torch.manual_seed(3)
    schedule = LearnedSchedule(-3.0, 6.0)
    t = torch.linspace(0, 1, 101, dtype=torch.float64).requires_grad_()
    s, rise = schedule.interior(t)
    assert s[[0, -1]].tolist() == [0, 1]
    assert (s.diff() > 0).all()
    (slope,) = torch.autograd.grad(s.sum(), t)
    assert torch.allclose(rise, slope, rtol=1e-10)
    gamma, gamma_prime = schedule(t)
    assert gamma[[0, -1]].tolist() == [-3.0, 6.0]
    assert torch.allclose(gamma_prime, 9 * slope, rtol=1e-10)


def test_sqrt_schedule_knows_its_ends_and_its_slope() -> None:
    t = torch.linspace(0, 1, 11, dtype=torch.float64).requires_grad_()
    gamma, slope = sqrt_gamma(t, 1e-4)
    assert torch.sigmoid(gamma[0]).item() == pytest.approx(0.01)
    assert torch.sigmoid(-gamma[-1]).item() == pytest.approx(LEAST)
    assert torch.allclose(torch.autograd.grad(gamma.sum(), t)[0], slope, rtol=1e-9)


# The models


def small(method: Method, num_tokens: int = 11, *, awake: bool = True) -> Any:
    """A network in float64; ``awake``, its zero projections are random, so that all of it matters."""
    torch.manual_seed(0)
    model = method.network(NETWORK, Vocabulary(num_tokens)).double()
    if awake:
        with torch.no_grad():
            for name, value in model.named_parameters():
                if not name.startswith(("schedule", "table")):
                    value.add_(0.2 * torch.randn_like(value))
    return model


def batch(rows: int = 8, length: int = 6, num_tokens: int = 11) -> tuple[Tensor, Tensor, Noise, Tensor]:
    """Tokens, times, noise and a mask with some filling."""
    noise = Noise.of(7, 0, torch.arange(rows))
    mask = torch.arange(length) < (length - noise.integers("filling", 3))[:, None]
    return noise.integers("x", num_tokens, length), stratified_times(7, 0, rows), noise, mask


def objective_of(method: Method) -> Objective:
    return method.phases(11, 10)[0].objective


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_loss_does_not_depend_on_how_the_batch_is_divided(method: Method) -> None:
    model, (x, t, noise, mask) = small(method), batch()
    for objective in (objective_of(method), method.measure(11)):
        whole = objective(model, x, t, noise, mask)
        assert whole.total.item() == pytest.approx(whole.nats.sum().item(), rel=1e-12)
        parts = []
        for start in (0, 1, 4):
            rows = slice(start, {0: 1, 1: 4, 4: 8}[start])
            index = torch.arange(8)[rows]
            parts.append(objective(model, x[rows], t[rows], noise.select(index), mask[rows]).nats)
        assert torch.allclose(torch.cat(parts), whole.nats, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_filling_costs_nothing_and_is_not_looked_at(method: Method) -> None:
    model, (x, t, noise, mask) = small(method), batch()
    other = torch.where(mask, x, (x + 1) % 11)
    assert not mask.all()
    for objective in (objective_of(method), method.measure(11)):
        nats = objective(model, x, t, noise, mask).nats
        assert (nats[~mask] == 0).all()
        assert torch.allclose(nats, objective(model, other, t, noise, mask).nats, rtol=1e-9)
    ends, changed = (method.measure(11).ends(model, ids, noise, mask) for ids in (x, other))
    assert torch.allclose(ends.reconstruction[mask], changed.reconstruction[mask], rtol=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_every_parameter_learns(method: Method) -> None:
    model, (x, t, noise, mask) = small(method, awake=True), batch()
    objective_of(method)(model, x, t, noise, mask, dropout=True).total.backward()  # type: ignore[no-untyped-call]
    for name, value in model.named_parameters():
        assert value.grad is not None, name
        assert torch.isfinite(value.grad).all(), name
        assert float(value.grad.abs().max()) > 0, name


def test_training_loss_of_plaid_is_an_unbiased_bound() -> None:
    """Reconstruction for a share of the samples, weighted: the mean of the measure with its ends."""
    model, count = small(Plaid(embedding_width=4)), 6_000
    x, t, noise, _ = batch(count, 2)
    with torch.no_grad():
        got = PlaidBound()(model, x, t, noise).nats.sum(-1)
        ends = vlb.Variational().ends(model, x, noise.fold("other"))
        expected = (vlb.Variational()(model, x, t, noise).nats + ends.prior + ends.reconstruction).sum(-1)
    error = float((got - expected).std()) / math.sqrt(count)
    assert abs(float((got - expected).mean())) < 4.5 * error
    assert 9 * error < float(ends.reconstruction.sum(-1).mean())


def test_untrained_plaid_is_the_model_of_uniform_tokens() -> None:
    """Its belief is Bayes' rule with a flat prior, so its bound is log K, up to what the prior misses."""
    model, count = small(Plaid(embedding_width=4), awake=False), 4_000
    x, t, noise, _ = batch(count, 4)
    with torch.no_grad():
        model.table.mul_(3)  # only directions count
        ends = vlb.Variational().ends(model, x, noise)
        nats = (vlb.Variational()(model, x, t, noise).nats + ends.prior + ends.reconstruction).mean(-1)
    error = float(nats.std()) / math.sqrt(count)
    assert error < 0.05
    assert abs(float(nats.mean()) - math.log(11)) < 4.5 * error + float(ends.prior.mean())


def gradients_of(model: PlaidDenoiser, rows: slice) -> dict[str, Tensor]:
    x, t, noise, _ = batch()
    index = torch.arange(8)[rows]
    model.zero_grad()
    PlaidBound()(model, x[rows], t[rows], noise.select(index)).total.backward()  # type: ignore[no-untyped-call]
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def test_variance_gradient_reaches_the_interior_of_the_schedule_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample: the interior's gradient is 2 loss times the plain one; the ends and all else have the plain one."""
    model = small(Plaid(embedding_width=4))
    x, t, noise, _ = batch()
    interior = {"schedule.steepness", "schedule.place", "schedule.height"}
    for row in range(3):
        got = gradients_of(model, slice(row, row + 1))
        with monkeypatch.context() as patch:
            patch.setattr(plaid, "reweighted", lambda value, weight: value)
            plain = gradients_of(model, slice(row, row + 1))
        index = torch.tensor([row])
        loss = vlb.Variational()(model, x[index], t[index], noise.select(index)).nats.mean().detach()
        for name, gradient in plain.items():
            factor = 2 * loss if name in interior else 1.0
            assert torch.allclose(got[name], factor * gradient, rtol=1e-8, atol=1e-12), name


def test_gradient_of_the_ends_is_that_of_the_whole_loss() -> None:
    """Reconstruction, diffusion and prior all depend on them: against differences."""
    model = small(Plaid(embedding_width=4))
    gradient = gradients_of(model, slice(0, 8))["schedule.offset"]
    x, t, noise, _ = batch()
    for end in range(2):
        values = []
        for shift in (1e-5, -2e-5):
            with torch.no_grad():
                model.schedule.offset[end] += shift
                values.append(float(PlaidBound()(model, x, t, noise).total))
        with torch.no_grad():
            model.schedule.offset[end] += 1e-5
        assert float(gradient[end]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


def test_training_sees_what_evaluation_sees() -> None:
    """All samples guessed, none reconstructed: the training loss is the measure's, and the prior."""
    model, (x, t, noise, mask) = small(METHODS[1]), batch()
    rows = noise.uniform("reconstruct") >= 0.25
    assert rows.any()
    trained = PlaidBound(guessed=1.0)(model, x, t, noise, mask).nats
    measured = vlb.Variational()(model, x, t, noise, mask).nats
    prior = vlb.Variational().ends(model, x, noise, mask).prior * mask
    assert torch.allclose(trained[rows], (measured + prior)[rows], rtol=1e-9)
    assert not torch.allclose(PlaidBound(guessed=0.0)(model, x, t, noise, mask).nats[rows], trained[rows])


def test_self_conditioning_costs_a_pass_in_evaluation_and_none_in_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Plaid(embedding_width=4, self_conditioning=True)
    model, (x, t, noise, _) = small(method), batch()
    calls: list[int] = []
    forward = model.backbone.forward

    def counted(*args: Any) -> Tensor:
        calls.append(len(args[0]))
        result: Tensor = forward(*args)
        return result

    monkeypatch.setattr(model.backbone, "forward", counted)
    method.measure(11)(model, x, t, noise)
    assert calls == [8, 8]
    calls.clear()
    generate(model, method.schedule(), method.sampler(11), num=3, length=5, steps=4)
    assert calls == [3] * 4
    calls.clear()
    PlaidBound(guessed=0.5)(model, x, t, noise)
    assert len(calls) == 2
    assert 0 < calls[0] < calls[1]
    own = model.predict(torch.ones(2, 5, 4).double(), double(0.0).expand(2))
    none = model.predict(torch.ones(2, 5, 4).double(), double(0.0).expand(2), guess=torch.zeros(2, 5, 4).double())
    assert not torch.allclose(own.x_hat, none.x_hat)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_network_is_a_vector_denoiser_and_nothing_else(method: Method) -> None:
    model = small(method)
    assert isinstance(model, vlb.VectorDenoiser)
    assert not isinstance(model, (Denoiser, Score))
    with torch.device("meta"):
        assert all(value.is_meta for value in method.network(NETWORK, Vocabulary(5)).parameters())
    sampler = method.sampler(11)
    for tail in TAILS:
        tokens = generate(model, method.schedule(), sampler, num=4, length=6, steps=3, tail=tail)
        assert tokens.shape == (4, 6)
        again = generate(model, method.schedule(), sampler, num=4, length=6, steps=3, tail=tail, batch_size=3)
        assert torch.equal(tokens, again)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_in_bfloat16_only_the_network_is_coarse(method: Method) -> None:
    """A network that says 0 says it in any precision: then the loss is what it is in float32."""
    x, t, noise, mask = batch()
    for awake, tolerance in ((False, 1e-5), (True, 0.1)):
        model = small(method, awake=awake).float()
        exact = objective_of(method)(model, x, t, noise, mask).nats
        with torch.autocast("cpu", torch.bfloat16):
            coarse = objective_of(method)(model, x, t, noise, mask).nats
        assert torch.allclose(exact, coarse, rtol=tolerance, atol=tolerance)


def test_what_is_refused_says_what_is_allowed() -> None:
    for method in (Plaid(), DiffusionLM()):
        with pytest.raises(ValueError, match=r"data\.labels=false"):
            method.network(NETWORK, Vocabulary(5, num_labels=2))
    with pytest.raises(ValueError, match="are allowed"):
        PlaidBound(share=0.0)
    with pytest.raises(ValueError, match="gamma_min < gamma_max"):
        Plaid(gamma_min=2.0, gamma_max=2.0)
    with pytest.raises(ValueError, match="at least 1"):
        Plaid(embedding_width=0)
    with pytest.raises(ValueError, match="at least 1"):
        DiffusionLM(embedding_width=0)
    with pytest.raises(ValueError, match=r"in \(0, 0\.9\)"):
        DiffusionLM(offset=0.0)
    with pytest.raises(ValueError, match="reads tokens"):
        vlb.Posterior().start(torch.nn.Linear(2, 2), 4, 2, Noise.of(0, 0, torch.arange(2)))  # type: ignore[arg-type]


def nats_of(method: Method, model: Any, x: Tensor) -> float:
    """Nats per token of the whole text, with noise that is always the same."""
    noise, measure = Noise.of(1, 0, torch.arange(len(x))), method.measure(256)
    with torch.no_grad():
        ends = measure.ends(model, x, noise)
        nats = measure(model, x, stratified_times(1, 0, len(x)), noise).nats + ends.prior + ends.reconstruction
    return float(nats.mean())


@pytest.mark.parametrize(
    ("method", "goal"), [(Plaid(), 4.2), (DiffusionLM(embedding_width=16, offset=0.3), 5.2)], ids=str
)
def test_training_lowers_the_bound_below_that_of_uniform_bytes(method: Method, goal: float, english: Path) -> None:
    """The bound of bytes that follow nothing is log 256 = 5.55; of this text's frequencies, 3.3."""
    text = torch.tensor(list(english.read_bytes()))
    x = text[: len(text) // 32 * 32].view(-1, 32)
    torch.manual_seed(0)
    model = method.network(NETWORK, Vocabulary(256))
    objective = method.phases(256, 100)[0].objective
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.99))
    before = nats_of(method, model, x)
    for step in range(100):
        noise = Noise.of(0, step, torch.arange(16))
        rows = (noise.uniform("rows") * len(x)).long()
        loss = objective(model, x[rows], stratified_times(0, step, 16), noise, dropout=True)
        optimizer.zero_grad()
        (loss.total / x[rows].numel()).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    after = nats_of(method, model, x)
    assert after < goal < before


def test_diffusion_lm_trains_rounding_and_squared_error() -> None:
    """L_simple of a network that says 0: ||e||^2 / d, the rounding of z_0, and the little that is left at t = 1."""
    model = small(DiffusionLM(embedding_width=8), awake=False)
    assert isinstance(model, DiffusionLMDenoiser)
    x, t, noise, _ = batch()
    nats = SimpleLoss()(model, x, t, noise).nats
    size = model.table[x].square().mean(-1)
    rounding = vlb.Variational(even=True).ends(model, x, noise).reconstruction
    assert torch.allclose(nats, (1 + LEAST) * size + rounding, rtol=1e-9)
