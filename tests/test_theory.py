"""The theory on toys: both sides of each statement, up to rounding; and where the statements do not hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from duality.diffusion import gaussian, posterior
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import LinearVariance
from duality.noise import Noise
from experiments import theory
from experiments.theory import Reverse

WRONG = [
    Reverse(sharpness=0.5),
    Reverse(sharpness=3.0, believed=(0.2, 0.8), steps=5),
    Reverse((0.5, 0.3, 0.2), sharpness=0.5, steps=6, end=0.05),
]


@lru_cache
def nodes_of(vocab_size: int) -> theory.Nodes:
    return theory.hyperplane(vocab_size)


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mus_at(*noise: float) -> Tensor:
    return LinearVariance().mu(f64(*noise))


def entropy(reverse: Reverse) -> float:
    return -sum(p * math.log(p) for p in reverse.law)


def pushed(densities: Tensor, nodes: theory.Nodes) -> Tensor:
    return (densities * nodes.weights) @ nodes.cell


@pytest.mark.parametrize("vocab_size", [2, 3])
@pytest.mark.parametrize("mu", [0.0, 0.4, 1.5, 5.0])
def test_the_argmax_of_the_latent_is_uniform_noise(vocab_size: int, mu: float) -> None:
    """Quadrature over cells = the one-dimensional integral = T of the library."""
    nodes, ratio = nodes_of(vocab_size), torch.tensor(mu, dtype=torch.float64)
    one = torch.eye(vocab_size, dtype=torch.float64)
    alpha = gaussian.level(ratio, vocab_size).expand(vocab_size)
    expected = posterior.marginal(one, alpha, Uniform(vocab_size).prior())
    alpha_tilde, sigma_tilde = gaussian._split_mu(ratio)
    assert torch.allclose(theory.cell_probs(alpha_tilde * one, sigma_tilde), expected, atol=1e-14)
    assert torch.allclose(pushed(theory.latents(ratio, nodes), nodes), expected, atol=1e-12)


def test_cells_of_any_gaussian() -> None:
    nodes, std = nodes_of(3), torch.tensor(0.6, dtype=torch.float64)
    mean = torch.tensor([[0.7, -0.4, 0.1], [0.2, 0.3, 1.0]], dtype=torch.float64)
    one = torch.eye(2, dtype=torch.float64)
    density = theory.spread(one, theory.centred(mean), std, nodes.points)
    assert torch.allclose(pushed(density, nodes), theory.cell_probs(mean, std), atol=1e-12)
    assert torch.equal(nodes.points.argmax(-1), nodes.cell.argmax(-1))


def test_only_cells_of_two_and_three_tokens_are_known() -> None:
    with pytest.raises(ValueError, match="vocab_size is 4"):
        theory.hyperplane(4)


def test_the_forward_step_leads_from_level_to_level() -> None:
    nodes, (mu_s, mu_t) = nodes_of(2), mus_at(0.2, 0.6)
    ratio, std = theory.forward_step(mu_s, mu_t)
    moved = theory.spread(theory.latents(mu_s, nodes) * nodes.weights, ratio * nodes.points, std, nodes.points)
    assert torch.allclose(moved, theory.latents(mu_t, nodes), atol=1e-12)


@pytest.mark.parametrize("reverse", WRONG, ids=["soft", "sharp", "three"])
def test_theorem_3_1_and_two_kernels_that_fail(reverse: Reverse) -> None:
    nodes = nodes_of(len(reverse.law))
    densities = theory.gaussian_marginals(reverse, nodes)
    truth = pushed(densities, nodes)
    found = theory.kernels(reverse, nodes, densities)
    prior = Uniform(len(reverse.law)).prior()
    for kernel in found:
        assert torch.allclose(kernel.sum(-1), torch.ones(()).double(), atol=1e-12)
        assert bool((kernel >= 0).all())
    assert float((theory.discrete_marginals(prior, found.exact) - truth).abs().max()) < 1e-11
    for kernel in (found.centre, found.plug_in):
        assert float((theory.discrete_marginals(prior, kernel) - truth).abs().max()) > 0.02
    # the denoiser that would make the uniform posterior this kernel gives it back
    levels, states = gaussian.level(reverse.mus(), len(prior)), torch.arange(len(prior))
    for kernel, (alpha_t, alpha_s) in zip(found.exact, pairwise(levels)):
        belief = theory.belief_of_kernel(kernel, alpha_t, alpha_s)
        back = posterior.posterior(belief, states, alpha_t.expand(len(prior)), alpha_s.expand(len(prior)), prior)
        assert torch.allclose(back, kernel, atol=1e-12)
        assert torch.allclose(belief.sum(-1), torch.ones(()).double(), atol=1e-11)


def test_the_gaussian_reverse_process_is_what_it_says() -> None:
    """Compared with sampled trajectories in R^K that use the textbook posterior."""
    reverse = Reverse((0.5, 0.3, 0.2), believed=(0.2, 0.5, 0.3), sharpness=0.7, steps=3, end=0.1)
    nodes = nodes_of(3)
    final = pushed(theory.gaussian_marginals(reverse, nodes)[-1], nodes)
    generator, count = torch.Generator().manual_seed(0), 200_000
    w = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    for t, s in [(1.0, 0.7), (0.7, 0.4), (0.4, 0.1)]:
        logits = f64(0.2, 0.5, 0.3).log() + 0.7 * math.sqrt(1 - t) / t * w
        precision = 1 / s + (1 - t) / (1 - s) / (1 - (1 - t) / (1 - s))
        lift = math.sqrt(1 - s) / s * logits.softmax(-1)
        pull = math.sqrt((1 - t) / (1 - s)) / (1 - (1 - t) / (1 - s)) * w
        w = (lift + pull) / precision + precision**-0.5 * torch.randn(w.shape, generator=generator).double()
    counts = torch.bincount(w.argmax(-1), minlength=3) / count
    assert torch.allclose(counts.double(), final, atol=5 * 0.5 / math.sqrt(count))


def test_a_belief_is_recovered_from_its_kernel() -> None:
    belief = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.05, 0.9, 0.05]], dtype=torch.float64)
    alpha_t, alpha_s = torch.tensor(0.35, dtype=torch.float64), torch.tensor(0.6, dtype=torch.float64)
    prior = Uniform(3).prior()
    kernel = posterior.posterior(belief, torch.arange(3), alpha_t.expand(3), alpha_s.expand(3), prior)
    assert torch.allclose(theory.belief_of_kernel(kernel, alpha_t, alpha_s), belief, atol=1e-14)


def test_no_denoiser_on_the_simplex_gives_the_kernel_of_small_steps() -> None:
    """Not even the exact posterior mean: tokens change at rate sqrt(step); the uniform posterior allows rate step."""
    nodes, smallest = nodes_of(2), []
    for steps in (8, 32):
        reverse = Reverse(steps=steps)
        exact = theory.kernels(reverse, nodes, theory.gaussian_marginals(reverse, nodes)).exact
        pairs = zip(exact, pairwise(gaussian.level(reverse.mus(), 2)))
        smallest.append(min(float(theory.belief_of_kernel(kernel, *pair).min()) for kernel, pair in pairs))
    assert smallest == pytest.approx([-0.0964, -0.7484], abs=1e-4)


SWEEP = [
    *(Reverse(sharpness=s, believed=b) for s in (0.3, 1.0, 4.0) for b in (None, (0.5, 0.5), (0.2, 0.8))),
    Reverse(steps=1),
    Reverse(end=0.5),
    Reverse((0.9, 0.1), sharpness=0.6, steps=4, end=0.1),
    Reverse((0.5, 0.3, 0.2), sharpness=0.5, steps=3, end=0.1),
]


@pytest.mark.parametrize("reverse", SWEEP, ids=str)
def test_theorem_3_2_as_the_data_processing_inequality(reverse: Reverse) -> None:
    row = theory.likelihoods(reverse, nodes_of(len(reverse.law)))
    assert 0 <= row.discrete < row.density < row.bound


def test_the_inequality_is_sharp() -> None:
    """Nearly clean, with only the weights of the tokens wrong, the ratio of densities is constant on each cell."""
    row = theory.likelihoods(Reverse(believed=(0.4, 0.6), steps=48, end=0.01), nodes_of(2))
    divergence = 0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6)
    assert row.density - row.discrete < 5e-3
    assert row.discrete == pytest.approx(divergence, abs=5e-3)


@pytest.mark.parametrize("reverse", [Reverse(sharpness=0.5, steps=2), Reverse(believed=(0.4, 0.6), steps=3, end=0.2)])
def test_the_excess_of_the_gaussian_bound_is_a_divergence_of_trajectories(reverse: Reverse) -> None:
    """sum over steps of E_q log q(w_s | w_t) / p(w_s | w_t), by quadrature over both ends of every step."""
    nodes, law, total = nodes_of(2), f64(*reverse.law), 0.0
    ones = torch.eye(len(nodes.points), dtype=torch.float64)
    for mu_t, mu_s in pairwise(reverse.mus()):
        ratio, std = theory.forward_step(mu_s, mu_t)
        forward = theory.spread(ones, ratio * nodes.points, std, nodes.points).T  # (w_t, w_s)
        joint = forward * (law @ theory.latents(mu_s, nodes))
        model = theory.spread(ones, *reverse.step(nodes.points, mu_t, mu_s), nodes.points)
        given = joint / (joint @ nodes.weights)[:, None].clamp_min(1e-300)
        terms = torch.where(joint > 1e-60, joint * (given / model.clamp_min(1e-300)).log(), 0.0)
        total += float(nodes.weights @ terms @ nodes.weights)
    assert theory.likelihoods(reverse, nodes).bound == pytest.approx(total, abs=1e-9)


def test_the_gaussian_bound_of_the_exact_denoiser_tends_to_the_entropy() -> None:
    """So the two bounds are equal in the limit, and the factor 1/2 that the paper's formula lacks is needed."""
    nodes = nodes_of(2)
    excess = [theory.gaussian_bound(Reverse(steps=n, end=0.1), nodes) - entropy(Reverse()) for n in (64, 128, 256)]
    assert excess[0] > excess[1] > excess[2] > 0
    assert abs(2 * excess[2] - excess[1]) < 1e-4


def test_the_inequality_as_printed_depends_on_the_last_noise_level() -> None:
    nodes = nodes_of(2)
    for end, holds in [(0.2, True), (0.1, False), (0.02, False)]:
        row = theory.likelihoods(Reverse(end=end, steps=20), nodes)
        assert (row.token >= row.at_one_hot) is holds
    # With noise left and the exact posterior of the token, the Gaussian bound is the smaller one.
    rough = theory.likelihoods(Reverse(end=0.5, steps=20), nodes)
    assert -(rough.bound + entropy(Reverse())) > rough.token + 0.01


@pytest.mark.parametrize("law", [(0.7, 0.3), (0.5, 0.3, 0.2)])
def test_the_density_at_the_one_hot_vector(law: tuple[float, ...]) -> None:
    """One step from pure noise is one Gaussian of R^K, around alpha_tilde times the law."""
    reverse, size = Reverse(law, steps=1, end=0.1), len(law)
    alpha_tilde, one = math.sqrt(0.9), np.eye(size)
    square = ((one - alpha_tilde * np.array(law)) ** 2).sum(-1)
    expected = np.array(law) @ (-square / 0.2 - size / 2 * math.log(2 * math.pi * 0.1))
    row = theory.likelihoods(reverse, nodes_of(size))
    assert row.at_one_hot == pytest.approx(expected, abs=1e-11)
    cells = theory.cell_probs(alpha_tilde * f64(*law), f64(0.1).sqrt())
    assert row.token == pytest.approx(float(f64(*law) @ cells.log()), abs=1e-11)


PATHS = [theory.gaussian_path, theory.uniform_path, theory.shared_noise_path]


@pytest.mark.parametrize("vocab_size", [2, 3])
def test_three_laws_of_paths_have_the_same_marginals(vocab_size: int) -> None:
    mus = mus_at(0.2, 0.35, 0.6)
    prior, one = Uniform(vocab_size).prior(), torch.eye(vocab_size, dtype=torch.float64)[0]
    for path in PATHS:
        law = path(mus, vocab_size)
        for place, rest in enumerate([(1, 2), (0, 2), (0, 1)]):
            expected = posterior.marginal(one, gaussian.level(mus[place], vocab_size), prior)
            assert torch.allclose(law.sum(rest), expected, atol=1e-11), path
        # leaving a time out of the middle gives the law of the other two
        assert torch.allclose(law.sum(1), path(mus[[0, 2]], vocab_size), atol=1e-11), path


def test_transitions_match_the_bivariate_normal_law() -> None:
    """K = 2: P(both show x) = Phi(h) Phi(k) + int_0^rho of the bivariate density, rho = mu_t / mu_s (Plackett)."""
    node, weight = np.polynomial.legendre.leggauss(200)
    for noise in [(0.3, 0.6), (0.3, 0.301), (0.05, 0.9)]:
        mus = mus_at(*noise)
        (h, k), limit = (mus / math.sqrt(2)).tolist(), math.asin(float(mus[1] / mus[0]))
        theta = (node + 1) / 2 * limit
        density = np.exp(-(h**2 + k**2 - 2 * h * k * np.sin(theta)) / (2 * np.cos(theta) ** 2)) / (2 * math.pi)
        intersection = (
            math.erfc(-h / math.sqrt(2)) * math.erfc(-k / math.sqrt(2)) / 4 + float(weight @ density) / 2 * limit
        )
        assert float(theory.gaussian_path(mus, 2)[0, 0]) == pytest.approx(intersection, abs=1e-12)


def test_the_discretised_gaussian_path_is_no_markov_chain() -> None:
    mus = mus_at(0.2, 0.35, 0.5)
    chain, path = theory.uniform_path(mus, 2), theory.gaussian_path(mus, 2)
    chain_given, path_given = (law / law.sum(2, keepdim=True) for law in (chain, path))
    assert torch.allclose(chain_given[0], chain_given[1], atol=1e-14)
    assert path_given[:, 0, 0].tolist() == pytest.approx([0.8572, 0.6920], abs=1e-4)
    # and it depends on x: staying at x and staying at another token are not equally likely
    chain_stay, path_stay = ((law.sum(2) / law.sum((1, 2))[:, None]).diagonal().tolist() for law in (chain, path))
    assert chain_stay[0] == pytest.approx(chain_stay[1], abs=1e-14)
    assert path_stay == pytest.approx([0.8736, 0.6510], abs=1e-4)


@pytest.mark.parametrize(("path", "power"), list(zip(PATHS, [0.5, 1.0, 1.0])), ids=["gaussian", "uniform", "shared"])
def test_how_often_tokens_change_in_a_short_time(path: Callable[[Tensor, int], Tensor], power: float) -> None:
    changes = [1 - float(path(mus_at(0.3, 0.3 + gap), 2).trace()) for gap in (1e-5, 4e-5)]
    assert math.log(changes[1] / changes[0], 4) == pytest.approx(power, abs=2e-3)


@pytest.mark.parametrize("vocab_size", [2, 3])
def test_shared_noise_changes_tokens_as_rarely_as_the_marginals_allow(vocab_size: int) -> None:
    mus = mus_at(0.3, 0.6)
    law = theory.shared_noise_path(mus, vocab_size)
    variation = float((law.sum(0) - law.sum(1)).abs().sum() / 2)
    assert 1 - float(law.trace()) == pytest.approx(variation, abs=1e-14)
    for path in PATHS[:2]:
        assert 1 - float(path(mus, vocab_size).trace()) > variation + 0.02


def test_shared_noise_is_the_coupling_of_the_library() -> None:
    mus = mus_at(0.3, 0.6)
    x = torch.zeros(1000, 200, dtype=torch.int64)
    z_t, z_s = gaussian.coupled_argmax(x, mus[1], mus[0], 3, Noise.of(0, 0, torch.arange(1000)))
    counts = torch.bincount((3 * z_s + z_t).flatten(), minlength=9).reshape(3, 3) / x.numel()
    assert torch.allclose(counts.double(), theory.shared_noise_path(mus, 3), atol=5 * 0.5 / math.sqrt(x.numel()))


def test_a_deterministic_trajectory_is_the_argmax_of_one_noise() -> None:
    """The law of two levels, and no token that has become noise is clean again or changes once more."""
    x, mus = torch.zeros(200_000, dtype=torch.int64), mus_at(0.3, 0.6)
    path = theory.deterministic_path(mus, x, 3, Noise.of(0, 0, torch.arange(1)))
    counts = torch.bincount(3 * path[0] + path[1], minlength=9).reshape(3, 3) / len(x)
    assert torch.allclose(counts.double(), theory.shared_noise_path(mus, 3), atol=5 * 0.5 / math.sqrt(len(x)))
    many = theory.deterministic_path(
        mus_at(*torch.linspace(0.05, 0.9, 20).tolist()), x[:500], 50, Noise.of(0, 0, x[:1])
    )
    before, after = many[:-1], many[1:]
    assert ((before == after) | (before == 0)).all()
    assert (many[0] != many[-1]).any()


def test_a_gaussian_path_has_the_gaussian_marginals() -> None:
    mus = mus_at(0.1, 0.3, 0.8)
    path = theory.latent_path(mus, 200_000, Noise.of(0, 0, torch.zeros(1, dtype=torch.int64)))
    alpha_tilde, sigma_tilde = gaussian._split_mu(mus)
    assert torch.allclose(path[:, 1:].std(-1), sigma_tilde, rtol=0.01)
    assert torch.allclose(path[:, 1:].mean(-1), torch.zeros(3, dtype=torch.float64), atol=5e-3 / math.sqrt(2))
    assert ((path[:, 0] - alpha_tilde).abs() < 4 * sigma_tilde).all()


def test_the_figures_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theory.main(str(tmp_path / "duality.png"), "30522")
    assert (tmp_path / "duality.png").stat().st_size > 10_000
    assert "noise variances 0.0285 and 0.1467" in capsys.readouterr().out
