"""Gaussian diffusion over vectors: Bayes' rule, the bound of an oracle, the sampler's exact law."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from support.oracles import data_law, entropy, gauss_legendre, total_variation
from torch import Tensor

from duality import protocols
from duality.diffusion import vectors
from duality.diffusion.schedules import LogLinear
from duality.noise import Noise, stratified_times
from duality.objectives import variational
from duality.protocols import Dropout, Measure, Sampler, Valid
from duality.samplers import gaussian
from duality.samplers.generate import generate


@dataclass(frozen=True)
class Oracle:
    """The exact model of ``sequences`` (N, L) that occur with the probabilities ``law``: tokens are rows of ``table``.

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
        alpha, sigma = (level[:, None, None, None] for level in vectors.levels(gamma))
        scores = -(z[:, :, None] - alpha * self.table).square().sum(-1) / (2 * sigma[..., 0] ** 2)
        places = torch.arange(self.sequences.shape[1])
        joint = torch.softmax(scores[:, places, self.sequences].sum(-1) + self.law.log(), -1)
        marginal = torch.einsum("bn,nlk->blk", joint, F.one_hot(self.sequences, len(self.table)).double())
        return marginal.clamp_min(1e-300).log()

    def predict(
        self, z: Tensor, gamma: Tensor, valid: Valid = None, dropout: Dropout = None, guess: Tensor | None = None
    ) -> protocols.Prediction:
        logits = self.belief(z, gamma)
        return protocols.Prediction(logits.exp() @ self.table, logits)

    def decode(self, z: Tensor, valid: Valid = None) -> Tensor:
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
    alpha_t, sigma_t = vectors.levels(double(gamma_t))
    alpha_s, sigma_s = vectors.levels(double(gamma_s))
    ratio = alpha_t / alpha_s
    added = sigma_t**2 - ratio**2 * sigma_s**2  # z_t = ratio z_s + noise of this variance
    variance = 1 / (1 / sigma_s**2 + ratio**2 / added)
    expected = variance * (alpha_s * e / sigma_s**2 + ratio * z / added)
    mean, deviation = vectors.posterior(z, e, double(gamma_t), double(gamma_s))
    assert torch.allclose(mean, expected, rtol=1e-11)
    assert torch.allclose(deviation.flatten() ** 2, variance, rtol=1e-11)


@pytest.mark.parametrize("gamma", [-2.0, 0.5, 8.0])
def test_prior_term_is_the_divergence(gamma: float) -> None:
    e = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alpha, sigma = vectors.levels(double(gamma))
    noisy = torch.distributions.Normal(alpha * e, sigma.expand_as(e))
    expected = torch.distributions.kl_divergence(noisy, torch.distributions.Normal(0.0, 1.0)).sum(-1)
    assert torch.allclose(vectors.prior_nats(e, torch.tensor(gamma, dtype=torch.float64)), expected, rtol=1e-9)


def exact_bound(oracle: Oracle, bias: float = 0.0) -> float:
    """E over x, t and z of the three terms, one-token oracle; ``bias`` is added to its prediction."""
    points, step = line(3001, 9.0)
    z = points[:, None, None]
    prior = vectors.prior_nats(oracle.table[:, None], oracle.gamma(double(1.0))[0][0])[:, 0]
    first = double(oracle.first).expand(len(z))
    total = float((oracle.law * prior).sum())
    for token in range(3):
        e = oracle.table[token].expand(len(z), 1, 1)
        x = torch.full((len(z), 1), token)
        for t, weight in zip(*gauss_legendre(40)):
            gamma, slope = (part.expand(len(z)) for part in oracle.gamma(t[None]))
            alpha, sigma = vectors.levels(gamma)
            nats = vectors.diffusion_nats(e, oracle.predict(z, gamma).x_hat + bias, gamma, slope)[:, 0]
            probability = normal_density(points, alpha * oracle.table[token], sigma) * step
            total += float(oracle.law[token] * weight * (probability * nats).sum())
        alpha, sigma = vectors.levels(first)
        probability = normal_density(points, alpha * oracle.table[token], sigma) * step
        total += float(oracle.law[token] * (probability * vectors.cross_entropy(oracle.decode(z), x)[:, 0]).sum())
    return total


@pytest.mark.parametrize("power", [1.0, 1.7])
def test_bound_of_the_oracle_is_the_entropy_plus_the_divergence_from_the_prior(power: float) -> None:
    """The diffusion term is I(x; z_0) - I(x; z_1) for any schedule; with the ends: H(x) + KL(q(z_1) || N(0, 1))."""
    oracle = one_token(power=power)
    points, step = line(3001, 9.0)
    alpha, sigma = vectors.levels(double(oracle.final))
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
    measure: Measure = variational.Variational(even=even)
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
        mean, deviation = vectors.posterior(z, oracle.predict(z, gamma_t).x_hat, gamma_t, gamma_s)
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
        assert 1.8 < coarse / fine < 2.4  # twice the steps give half of the error


def test_generate_draws_from_the_exact_law() -> None:
    """The real loop and sampler at 8 steps, where the law is not the data's."""
    oracle, count, steps = one_token(final=14.0), 100_000, 8
    expected = law_of(oracle, steps)
    assert total_variation(expected, oracle.law) > 0.1
    sampler: Sampler = gaussian.GaussianAncestral()
    tokens = generate(oracle, LogLinear(0.0), sampler, num=count, length=1, steps=steps, batch_size=count)
    rate = torch.bincount(tokens.flatten(), minlength=3) / count
    assert ((rate - expected).abs() < 4.5 * (expected * (1 - expected) / count).sqrt()).all()


def test_clamping_rounds_the_prediction_to_an_embedding() -> None:
    oracle = one_token(first=-40.0, final=2.0)
    noise = Noise.of(0, 0, torch.arange(50))
    noisy, clean = torch.zeros(50, dtype=torch.float64), torch.ones(50, dtype=torch.float64)
    state = gaussian.GaussianAncestral().start(oracle, 1, 2, noise)
    free = gaussian.GaussianAncestral().step(oracle, state, noisy, clean, noise)
    clamped = gaussian.GaussianAncestral(clamp=True).step(oracle, state, noisy, clean, noise)
    assert torch.allclose(free.z, free.guess, atol=1e-6)
    distance = (clamped.z - oracle.table[:, 0]).abs()
    assert float(distance.min(-1).values.max()) < 1e-6
    assert torch.equal(distance.argmin(-1), gaussian.GaussianAncestral().tokens(oracle, clamped))
    assert float((free.z - clamped.z).abs().max()) > 0.05


# The schedules
