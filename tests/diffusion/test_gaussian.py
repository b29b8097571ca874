"""The Gaussian side of Duo: T against 30-digit quadrature, sparse latents against dense ones, coupled pairs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from duality import devices
from duality.diffusion import gaussian, posterior
from duality.diffusion.processes import GaussianUniform, Uniform
from duality.noise import Noise
from duality.protocols import TopK

SIZES = [2, 27, 30_522, 50_257, 256_000]


def exact_level(mu: float, vocab_size: int) -> mpmath.mpf:
    """T by adaptive quadrature with 30 digits."""
    with mpmath.workdps(30):
        point = mpmath.mpf(mu)

        def integrand(u: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(u) * mpmath.ncdf(point + u) ** (vocab_size - 1)

        hit = mpmath.quad(integrand, [-14, -6, -4, -2, 0, 1, 2, 3, 4, 5, 6, 8, 14])
        return (vocab_size * hit - 1) / (vocab_size - 1)


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", SIZES)
def test_level_matches_quadrature_with_30_digits(vocab_size: int) -> None:
    points = [0.0, 0.3, 1.0, 2.5, 4.0, 5.5, 8.0]
    got = gaussian.level(torch.tensor(points, dtype=torch.float64), vocab_size).tolist()
    for mu, value in zip(points, got):
        assert abs(value - float(exact_level(mu, vocab_size))) <= 1e-12


def test_level_has_the_known_values() -> None:
    mu = torch.linspace(0, 6, 50, dtype=torch.float64)
    closed = 2 * torch.special.ndtr(mu / math.sqrt(2)) - 1
    assert torch.allclose(gaussian.level(mu, 2), closed, atol=1e-15)
    gamma = torch.tensor([-3.55, -3.0, -1.85], dtype=torch.float64)
    assert gaussian.level((-gamma / 2).exp(), 50_257).tolist() == pytest.approx([0.9455, 0.5963, 0.0493], abs=5e-5)


@pytest.mark.parametrize("vocab_size", SIZES)
def test_slope_is_the_derivative_and_inverse_is_the_inverse(vocab_size: int) -> None:
    mu = torch.linspace(0.5, 7, 40, dtype=torch.float64)
    step = 1e-4
    higher = gaussian.level(mu + step, vocab_size), gaussian.level(mu + 2 * step, vocab_size)
    lower = gaussian.level(mu - step, vocab_size), gaussian.level(mu - 2 * step, vocab_size)
    numeric = (8 * (higher[0] - lower[0]) - (higher[1] - lower[1])) / (12 * step)
    assert torch.allclose(gaussian.level_slope(mu, vocab_size), numeric, atol=1e-10)
    alpha = torch.tensor([0.0, 1e-6, 0.05, 0.5, 0.95, 1 - 1e-9], dtype=torch.float64)
    back = gaussian.level(gaussian.inverse_level(alpha, vocab_size), vocab_size)
    assert torch.allclose(back, alpha, atol=1e-14)


@pytest.mark.parametrize("vocab_size", SIZES)
def test_slope_matches_quadrature_with_30_digits(vocab_size: int) -> None:
    with mpmath.workdps(30):
        for mu in (0.5, 3.0, 6.0):

            def integrand(u: mpmath.mpf, mu: float = mu) -> mpmath.mpf:
                return mpmath.npdf(u) * mpmath.npdf(mu + u) * mpmath.ncdf(mu + u) ** (vocab_size - 2)

            slope = vocab_size * mpmath.quad(integrand, [-14, -6, -4, -2, 0, 1, 2, 3, 4, 5, 6, 8, 14])
            got = gaussian.level_slope(torch.tensor(mu, dtype=torch.float64), vocab_size)
            assert abs(got.item() - float(slope)) <= 1e-12


def test_reference_operator(golden: Path) -> None:
    data = np.load(golden / "operator.npz")
    for vocab_size in (30_522, 50_257):
        gamma = torch.from_numpy(data[f"K{vocab_size}/gamma"]).double()
        reference = torch.from_numpy(data[f"K{vocab_size}/alpha_ref_f64"])
        assert torch.allclose(gaussian.level((-gamma / 2).exp(), vocab_size), reference, atol=1e-7)  # float32 gamma


def test_inverse_refuses_what_has_no_inverse() -> None:
    with pytest.raises(ValueError, match="infinite mu"):
        gaussian.inverse_level(torch.tensor([1.0]), 27)
    with pytest.raises(ValueError, match="at least 2 states"):
        gaussian.level(torch.tensor([1.0]), 1)


@pytest.mark.parametrize(("count", "vocab_size"), [(3, 5), (4, 5), (3, 40), (8, 40)])
def test_distinct_others_is_uniform_over_ordered_tuples(count: int, vocab_size: int) -> None:
    x = torch.full((20_000, 1), 2)
    ids = gaussian._distinct_others(x, count, vocab_size, Noise.of(0, 0, torch.arange(len(x))))[:, 0]
    assert not (ids == 2).any()
    assert (ids.sort(-1).values.diff() > 0).all()
    # every position has the uniform law, and so has the order: the first is the smaller one half of the time
    for position in range(count):
        counts = torch.bincount(ids[:, position], minlength=vocab_size).double()
        expected = len(x) / (vocab_size - 1)
        statistic = float(((counts - expected) ** 2 / expected).sum()) - expected  # token 2 is never drawn
        assert abs(statistic - (vocab_size - 2)) < 5 * math.sqrt(2 * (vocab_size - 2))
    ordered = float((ids[:, 0] < ids[:, -1]).double().mean())
    assert abs(ordered - 0.5) < 4.5 * math.sqrt(0.25 / len(x))


def test_largest_normals_are_order_statistics() -> None:
    """All of 6, put together, are 6 independent normals; the largest 3 of 40 have the means of sorted draws."""
    every = gaussian._largest_normals(6, 6, 5, Noise.of(0, 0, torch.arange(4000))).flatten(0, 1)
    assert (every.diff() < 0).all()
    count = every.numel()
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        spread = {1: 1.0, 2: 2.0, 3: 15.0, 4: 96.0}[power]
        assert abs(float((every**power).mean()) - moment) < 4.5 * math.sqrt(spread / count)
    some = gaussian._largest_normals(3, 40, 5, Noise.of(1, 0, torch.arange(4000))).flatten(0, 1)
    torch.manual_seed(0)
    direct = torch.randn(20_000, 40, dtype=torch.float64).topk(3).values
    error = ((some.var(0) + direct.var(0)) / 20_000).sqrt()
    assert ((some.mean(0) - direct.mean(0)).abs() < 4.5 * error).all()


def dense(x: torch.Tensor, mu: torch.Tensor, tau: float, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(w / tau) and argmax w of the whole K-vector: the definition."""
    alpha_tilde, sigma_tilde = gaussian._split_mu(mu)
    w = sigma_tilde[..., None] * torch.randn(*x.shape, vocab_size, dtype=torch.float64)
    w.scatter_add_(-1, x[..., None], alpha_tilde.expand(x.shape)[..., None])
    return torch.softmax(w / tau, -1), w.argmax(-1)


def mean_input(soft: TopK | torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Embeddings of the inputs, one row per token."""
    if isinstance(soft, TopK):
        return (soft.weights[..., None] * table[soft.ids]).sum(-2).flatten(0, 1)
    return (soft @ table).flatten(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [3, 27, 1000])
@pytest.mark.parametrize("tau", [0.001, 0.02, 0.1])
@pytest.mark.parametrize("alpha", [0.1, 0.6])
def test_sparse_latents_have_the_dense_law(vocab_size: int, tau: float, alpha: float) -> None:
    torch.manual_seed(vocab_size)
    batch, length, tolerance = 300, 10, 1e-3
    mu = gaussian.inverse_level(torch.tensor([alpha]), vocab_size)[:, None]
    kept = gaussian.kept_entries((float(mu), float(mu)), tau, vocab_size, tolerance)
    x = torch.full((batch, length), 1)
    sparse, z = gaussian.tempered_latents(x, mu, tau, kept, vocab_size, Noise.of(1, 0, torch.arange(batch)))
    full, z_dense = dense(x, mu, tau, vocab_size)
    count = batch * length
    # the argmax token: its exact rate, and uniform otherwise
    hit = (1 + (vocab_size - 1) * alpha) / vocab_size
    for sample in (z, z_dense):
        assert abs(float((sample == 1).double().mean()) - hit) < 4.5 * math.sqrt(hit * (1 - hit) / count)
    misses = z[z != 1]
    assert abs(float((misses == 0).double().mean()) - 1 / (vocab_size - 1)) < 4.5 * math.sqrt(
        1 / vocab_size / len(misses)
    )
    # the argmax is where the weight is largest, in both
    assert torch.equal(sparse.ids.gather(-1, sparse.weights.argmax(-1, keepdim=True))[..., 0], z)
    # mean input embedding, and the mean weight of the true token
    table = torch.randn(vocab_size, 8, dtype=torch.float64)
    ours, theirs = mean_input(sparse, table), mean_input(full, table)
    error = ((ours.var(0) + theirs.var(0)) / count).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4.5 * error + tolerance * table.abs().max()).all()
    # the spread of the weights: mean of the sum of squares
    ours_sq, theirs_sq = (sparse.weights**2).sum(-1).flatten(), (full**2).sum(-1).flatten()
    error_sq = math.sqrt(float(ours_sq.var() + theirs_sq.var()) / count)
    assert abs(float(ours_sq.mean() - theirs_sq.mean())) < 4.5 * error_sq + 2 * tolerance


@pytest.mark.slow
def test_kept_entries_grow_with_temperature_and_their_bound_holds() -> None:
    """The fraction left out, measured on dense latents, is what the bound says."""
    vocab_size, tolerance = 2000, 1e-2
    mu = gaussian.inverse_level(torch.tensor([0.3]), vocab_size)
    kept = [gaussian.kept_entries((float(mu), float(mu)), tau, vocab_size, tolerance) for tau in (0.001, 0.03, 0.1)]
    assert kept[0] < kept[1] < kept[2] < vocab_size - 1
    torch.manual_seed(0)
    for tau, count in zip((0.001, 0.03, 0.1), kept):
        weights, _ = dense(torch.zeros(400, 10, dtype=torch.int64), mu[:, None], tau, vocab_size)
        own, others = weights[..., :1], weights[..., 1:].topk(count, -1).values
        left_out = 1 - torch.cat([own, others], -1).sum(-1)
        assert float(left_out.mean()) < 1.2 * tolerance
    assert gaussian.kept_entries((2.0, 3.0), 10.0, 27) == 26  # all others are kept: fewer would leave out too much


def test_tail_fraction_is_the_conditional_expectation() -> None:
    """Against a Monte-Carlo estimate on dense latents, given the kept entries."""
    torch.manual_seed(0)
    vocab_size, tau, kept = 500, 0.1, 20
    sigma_tilde = torch.tensor(0.3, dtype=torch.float64)
    w = sigma_tilde * torch.randn(4000, vocab_size - 1, dtype=torch.float64)
    ordered = w.sort(-1, descending=True).values
    entries = torch.cat([torch.full((4000, 1), 0.95, dtype=torch.float64), ordered[:, :kept]], -1)
    predicted = gaussian._tail_fraction(entries, sigma_tilde.expand(4000), tau, vocab_size - 1 - kept)
    actual = (ordered[:, kept:] / tau).exp().sum(-1) / (entries / tau).exp().sum(-1)
    error = float((predicted - actual).std()) / math.sqrt(4000)
    assert abs(float((predicted - actual).mean())) < 4.5 * error
    assert error < 0.01 * float(actual.mean())


def test_true_rate_where_testing_against_the_smallest_entry_fails() -> None:
    """K = 1000, gamma = -2.5: the rate of z = x is .595; comparing with the k-th largest instead would give .873."""
    mu = torch.tensor([[math.exp(1.25)]], dtype=torch.float64)
    x = torch.zeros(2000, 20, dtype=torch.int64)
    _, z = gaussian.tempered_latents(x, mu, 0.001, 10, 1000, Noise.of(0, 0, torch.arange(2000)))
    assert float((z == 0).double().mean()) == pytest.approx(0.595, abs=0.01)


@pytest.mark.parametrize("vocab_size", [2, 3, 12])
def test_coupled_pairs_have_the_joint_law_of_the_shared_noise(vocab_size: int) -> None:
    torch.manual_seed(1)
    batch, length, x_token = 4000, 20, 1
    mu_t, mu_s = 0.8, 1.7
    x = torch.full((batch, length), x_token)
    level_t, level_s = (torch.tensor([[mu]], dtype=torch.float64) for mu in (mu_t, mu_s))
    z_t, z_s = gaussian.coupled_argmax(x, level_t, level_s, vocab_size, Noise.of(0, 0, torch.arange(batch)))
    eps = torch.randn(batch * length, vocab_size, dtype=torch.float64)
    pair = []
    for mu in (mu_t, mu_s):
        w = eps.clone()
        w[:, x_token] += mu
        pair.append(w.argmax(-1))
    cells = vocab_size**2
    ours = torch.bincount((z_t * vocab_size + z_s).flatten(), minlength=cells).double()
    theirs = torch.bincount(pair[0] * vocab_size + pair[1], minlength=cells).double()
    used = (ours + theirs) > 0
    statistic = float(((ours - theirs) ** 2 / (ours + theirs))[used].sum())
    freedom = int(used.sum()) - 1
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)
    for z, mu in ((z_t, mu_t), (z_s, mu_s)):
        alpha = float(gaussian.level(torch.tensor(mu), vocab_size))
        hit = alpha + (1 - alpha) / vocab_size
        assert abs(float((z == x_token).double().mean()) - hit) < 4.5 * math.sqrt(hit * (1 - hit) / z.numel())


class EveryDraw(Noise):
    """For random numbers, all combinations: 1000 quantiles of a normal (rows), 1000 of a uniform (columns)."""

    quantiles = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000

    def normal(self, tag: str, *shape: int) -> torch.Tensor:
        values: torch.Tensor = torch.special.ndtri(self.quantiles)
        return values[:, None].expand(-1, *shape)

    def uniform(self, tag: str, *shape: int) -> torch.Tensor:
        return self.quantiles.repeat(shape[0] // 1000)[:, None].expand(1000, *shape)

    def integers(self, tag: str, high: int, *shape: int) -> torch.Tensor:
        return torch.arange(high).repeat_interleave(1000).expand(1000, *shape)


@pytest.mark.parametrize("vocab_size", [2, 3, 5])
@pytest.mark.parametrize("alpha", [0.0, 0.001, 0.3, 0.9, 1 - 1e-9, 1.0])
def test_argmax_latents_have_the_law_of_uniform_noise(vocab_size: int, alpha: float) -> None:
    """Nothing is drawn: the frequencies over all combinations are integrals, exact to the width of the grid."""
    x = torch.full((1000, 1000 * (vocab_size - 1)), 1)
    level = torch.full((1000,), alpha, dtype=torch.float64)
    z = GaussianUniform(vocab_size).corrupt(x, level, EveryDraw(torch.zeros(1000, dtype=torch.int64)))
    found = torch.bincount(z.flatten(), minlength=vocab_size) / z.numel()
    one = torch.eye(vocab_size, dtype=torch.float64)[1]
    law = posterior.marginal(one, level[0], Uniform(vocab_size).prior())
    assert torch.allclose(found.double(), law, atol=1e-3)
    assert alpha < 1 or torch.equal(z, x)


@pytest.mark.parametrize("vocab_size", [2, 3, 27, 1000, 30_522, 50_257, 256_000])
def test_no_signal_is_a_level_that_the_inverse_takes(vocab_size: int) -> None:
    level = gaussian.level(torch.tensor(0.0, dtype=torch.float64), vocab_size)
    assert 0 <= float(level) < 1e-15
    assert abs(float(gaussian.inverse_level(level, vocab_size))) < 1e-6


@pytest.mark.parametrize("vocab_size", [2, 27, 50_257, 256_000])
@pytest.mark.parametrize("mu", [0.0, 0.5, 4.0, 12.0, 18.0, 20.0, 30.0, 40.0])
def test_the_slope_keeps_its_digits_at_every_mu(mu: float, vocab_size: int) -> None:
    """Against quadrature of 40 digits around the peak of the integrand, which is at u = -mu / 2 for large mu."""
    with mpmath.workdps(40):
        half = mpmath.mpf(mu) / 2

        def integrand(v: Any) -> Any:
            return mpmath.exp(-(v**2)) * mpmath.ncdf(half + v) ** (vocab_size - 2)

        integral = mpmath.quad(integrand, [-12, -6, -3, 0, 1, 2, 3, 4, 5, 6, 8, 12])
        expected = float(vocab_size * mpmath.exp(-(half**2)) * integral / (2 * mpmath.pi))
    found = float(gaussian.level_slope(torch.tensor(mu, dtype=torch.float64), vocab_size))
    assert found == pytest.approx(expected, rel=1e-13, abs=0.0)


@pytest.mark.parametrize(("count", "vocab_size"), [(2, 7), (5, 13), (8, 300), (64, 200)])
def test_distinct_others_are_the_same_where_shapes_are_static(
    count: int, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn again a fixed number of times, as on a GPU, instead of until none is there twice."""
    noise = Noise.of(1, 2, torch.arange(40))
    x = noise.integers("x", vocab_size, 30)
    expected = gaussian._distinct_others(x, count, vocab_size, noise)
    monkeypatch.setattr(devices, "_WITHOUT_WAIT", ())
    found = gaussian._distinct_others(x, count, vocab_size, noise)
    assert torch.equal(found, expected)
    assert not (found.sort(-1).values.diff() == 0).any()
