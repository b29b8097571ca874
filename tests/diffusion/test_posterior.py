"""Posteriors and bounds: closed forms = general forms = explicit matrices, in float64."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plain_forms
from support.unigram import Unigram

from duality.diffusion import PROCESSES, closed_forms, draws, posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.noise import Noise
from duality.protocols import Process

torch.manual_seed(0)


def belief(shape: tuple[int, ...], process: Uniform | Absorbing, sharpness: float = 2.0) -> torch.Tensor:
    """A random belief about clean tokens; 0 at the mask token, which no text contains."""
    logits = sharpness * torch.randn(*shape, process.vocab_size, dtype=torch.float64)
    if isinstance(process, Absorbing):
        logits[..., process.mask_id] = -torch.inf
    return torch.softmax(logits, -1)


def clean_tokens(shape: tuple[int, ...], process: Uniform | Absorbing) -> torch.Tensor:
    return torch.randint(0, process.vocab_size - isinstance(process, Absorbing), shape)


def transition(ratio: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """The forward kernel from s to t as an explicit matrix [z_s, z_t]."""
    return ratio * torch.eye(len(prior), dtype=torch.float64) + (1 - ratio) * prior.expand(len(prior), -1)


@pytest.mark.parametrize("kind", PROCESSES.types())
def test_posterior_is_bayes_rule_on_explicit_matrices(kind: type) -> None:
    process = kind(5)
    prior = process.prior()
    alpha_t, alpha_s = torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    p = belief((), process)
    to_s, s_to_t = transition(alpha_s, prior), transition(alpha_t / alpha_s, prior)
    assert torch.allclose(to_s @ s_to_t, transition(alpha_t, prior), atol=1e-15)
    q_s = p @ to_s
    joint = q_s[:, None] * s_to_t
    for z in range(5):
        if joint[:, z].sum() == 0:
            continue
        expected = joint[:, z] / joint[:, z].sum()
        got = posterior.posterior(p, torch.tensor(z), alpha_t, alpha_s, prior)
        assert torch.allclose(got, expected, atol=1e-15)


@pytest.mark.parametrize("kind", PROCESSES.types())
@pytest.mark.parametrize("alpha_s", [0.31, 0.7, 1.0])
def test_routes_mix_to_the_posterior(kind: type, alpha_s: float) -> None:
    process = kind(7)
    p, z = belief((200,), process), torch.randint(0, 7, (200,))
    a_t, a_s = (torch.full((200,), a, dtype=torch.float64) for a in (0.3, alpha_s))
    route_probabilities = posterior.routes(p.gather(-1, z[:, None])[:, 0], process.prior_of(z), a_t, a_s)
    mixed = (
        route_probabilities.stay[:, None] * F.one_hot(z, 7)
        + route_probabilities.belief[:, None] * p
        + route_probabilities.prior[:, None] * process.prior()
    )
    expected = posterior.posterior(p, z, a_t, a_s, process.prior())
    assert torch.allclose(mixed, expected, atol=1e-14)
    assert torch.allclose(
        route_probabilities.stay + route_probabilities.belief + route_probabilities.prior,
        torch.ones(200, dtype=torch.float64),
        atol=1e-14,
    )


@pytest.mark.parametrize("process", [Uniform(7), Unigram(7)], ids=str)
@pytest.mark.parametrize("alpha", [0.0, 1e-12, 0.3, 0.9, 1 - 1e-12])
def test_the_evidence_makes_a_belief_the_posterior_of_the_clean_token(process: Process, alpha: float) -> None:
    """Against the dense posterior at alpha_s = 1, for an even and an uneven prior."""
    generator = torch.Generator().manual_seed(0)
    log_p = torch.log_softmax(3 * torch.randn(200, 7, generator=generator, dtype=torch.float64), -1)
    z, level = torch.randint(0, 7, (200,), generator=generator), torch.full((200,), alpha, dtype=torch.float64)
    evidence = posterior.log_evidence(process.prior_of(z), level)
    found = torch.softmax(log_p + evidence[:, None] * F.one_hot(z, 7), -1)
    dense = posterior.posterior(log_p.exp(), z, level, torch.ones_like(level), process.prior())
    assert torch.allclose(found, dense, rtol=1e-9, atol=1e-15)


def test_the_evidence_at_its_ends() -> None:
    prior, level = torch.tensor([0.25, 0.25, 0.0, 0.0, 1.0]).double(), torch.tensor([0.0, 1.0, 0.0, 0.5, 0.5]).double()
    assert posterior.log_evidence(prior, level).tolist() == [0.0, math.inf, math.inf, math.inf, math.log(2)]


def test_a_token_that_the_noise_cannot_produce_is_kept() -> None:
    zero, half = torch.zeros(1, dtype=torch.float64), torch.full((1,), 0.5, dtype=torch.float64)
    assert [float(way) for way in posterior.routes(zero, zero, half, half + 0.2)] == [1.0, 0.0, 0.0]


@settings(max_examples=60, deadline=None)
@given(
    vocab_size=st.sampled_from([2, 3, 27, 1000]),
    alpha=st.one_of(st.floats(1e-4, 1 - 1e-4), st.sampled_from([1e-9, 1 - 1e-9])),
    sharpness=st.floats(0.1, 20),
    seed=st.integers(0, 2**31),
)
def test_closed_uniform_bound_is_the_general_one(vocab_size: int, alpha: float, sharpness: float, seed: int) -> None:
    torch.manual_seed(seed)
    process = Uniform(vocab_size)
    p = belief((6,), process, sharpness)
    x = clean_tokens((6,), process)
    z = torch.cat([x[:3], clean_tokens((3,), process)])
    a, slope = torch.full((6,), alpha, dtype=torch.float64), torch.full((6,), -0.9, dtype=torch.float64)
    general = closed_forms.bound(posterior.log_ratios(p, z, a, process.prior()), x, z, a, slope, process.prior())
    closed = closed_forms.uniform_bound(p.log(), x, z, a, slope)
    # the general form subtracts numbers of the size of the ratios, up to K / (1 - alpha)
    assert torch.allclose(closed, general, rtol=1e-7, atol=1e-7 + 1e-14 * vocab_size / (1 - alpha))


def test_closed_uniform_bound_is_precise_at_ordinary_values() -> None:
    process = Uniform(27)
    p, x = belief((500,), process), clean_tokens((500,), process)
    z = torch.where(torch.rand(500) < 0.5, x, clean_tokens((500,), process))
    a = torch.rand(500, dtype=torch.float64) * 0.98 + 0.01
    slope = -torch.rand(500, dtype=torch.float64)
    general = closed_forms.bound(posterior.log_ratios(p, z, a, process.prior()), x, z, a, slope, process.prior())
    assert torch.allclose(closed_forms.uniform_bound(p.log(), x, z, a, slope), general, rtol=1e-11, atol=1e-11)
    assert (general >= 0).all()


def test_bound_is_zero_for_the_truth_and_positive_otherwise() -> None:
    process = Uniform(9)
    x = clean_tokens((40,), process)
    z = torch.where(torch.rand(40) < 0.5, x, clean_tokens((40,), process))
    a, slope = torch.full((40,), 0.4, dtype=torch.float64), torch.full((40,), -1.0, dtype=torch.float64)
    truth = F.one_hot(x, 9).double().clamp_min(1e-300).log()
    assert closed_forms.uniform_bound(truth, x, z, a, slope).abs().max() < 1e-12
    assert (closed_forms.uniform_bound(belief((40,), process).log(), x, z, a, slope) > 1e-4).all()


def test_absorbing_bound_is_weighted_cross_entropy() -> None:
    """MDLM's closed form: -alpha' / (1 - alpha) * (-log p_x) on masked tokens, 0 on the others."""
    process = Absorbing(8)
    p, x = belief((60,), process), clean_tokens((60,), process)
    z = torch.where(torch.rand(60) < 0.5, x, process.mask_id)
    a, slope = torch.rand(60, dtype=torch.float64), torch.full((60,), -0.7, dtype=torch.float64)
    got = closed_forms.bound(posterior.log_ratios(p, z, a, process.prior()), x, z, a, slope, process.prior())
    cross_entropy = -p.gather(-1, x[:, None])[:, 0].log() * -slope / (1 - a)
    assert torch.allclose(got, torch.where(z == process.mask_id, cross_entropy, 0.0), atol=1e-12)


def test_bound_is_the_rate_of_the_discrete_kl() -> None:
    """KL(q(z_s|z_t,x) || q(z_s|z_t,p)) / (t - s) tends to the bound as s tends to t."""
    process = Uniform(6)
    p, x = belief((30,), process), clean_tokens((30,), process)
    z = torch.where(torch.rand(30) < 0.5, x, clean_tokens((30,), process))
    a, slope = torch.full((30,), 0.5, dtype=torch.float64), torch.full((30,), -1.0, dtype=torch.float64)
    limit = closed_forms.uniform_bound(p.log(), x, z, a, slope)
    errors = []
    for step in (1e-3, 1e-4):
        true = posterior.posterior(F.one_hot(x, 6).double(), z, a, a + step, process.prior())
        model = posterior.posterior(p, z, a, a + step, process.prior())
        errors.append(float(((true * (true / model).log()).sum(-1) / step - limit).abs().max()))
    assert errors[0] < 0.05
    assert 5 < errors[0] / errors[1] < 20  # first order


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 0.5, 0.999, 1 - 1e-7])
@pytest.mark.parametrize("vocab_size", [27, 50257])
def test_float32_keeps_the_bound_at_both_ends(alpha: float, vocab_size: int) -> None:
    process = Uniform(vocab_size)
    log_p = torch.log_softmax(3 * torch.randn(40, vocab_size, dtype=torch.float64), -1).float().double()
    x = clean_tokens((40,), process)
    z = torch.where(torch.rand(40) < 0.5, x, clean_tokens((40,), process))
    a, slope = torch.full((40,), alpha, dtype=torch.float64), torch.full((40,), -1.0, dtype=torch.float64)
    exact = closed_forms.uniform_bound(log_p, x, z, a, slope)
    single = closed_forms.uniform_bound(log_p.float(), x, z, a, slope).double()
    assert torch.allclose(single, exact, rtol=1e-5, atol=1e-5)


def test_reference_losses_and_gradients(golden: Path) -> None:
    data = np.load(golden / "nelbo_duo_base_K27.npz")
    tensors = {name: torch.from_numpy(data[name]) for name in data.files if name != "__meta__"}
    logits = tensors["logits"].double().requires_grad_()
    alpha, slope = tensors["alpha_t"].double(), tensors["dalpha_t"].double()
    loss = closed_forms.uniform_bound(torch.log_softmax(logits, -1), tensors["x0"], tensors["xt"], alpha, slope)
    assert torch.allclose(loss, tensors["loss_f64"], rtol=1e-9, atol=1e-9)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.allclose(gradient, tensors["grad_logits_f64"], rtol=1e-8, atol=1e-9)


def test_reference_posteriors(golden: Path) -> None:
    data = np.load(golden / "posterior_duo_K27.npz")
    p, z = torch.from_numpy(data["x_theta_f64"]), torch.from_numpy(data["xt"])
    a_t, a_s = (torch.from_numpy(data[name]).double() for name in ("alpha_t", "alpha_s"))
    got = posterior.posterior(p, z, a_t, a_s, Uniform(27).prior())
    assert torch.allclose(got, torch.from_numpy(data["q_xs_f64"]), atol=2e-7)  # their alphas are float32


@pytest.mark.parametrize("kind", PROCESSES.types())
def test_corrupt_has_the_marginal_law(kind: type) -> None:
    process = kind(5)
    x = clean_tokens((1, 1), process).expand(4000, 10)
    z = process.corrupt(x, torch.full((4000,), 0.3, dtype=torch.float64), Noise.of(0, 0, torch.arange(4000)))
    expected = posterior.marginal(
        F.one_hot(x[0, 0], 5).double(), torch.tensor(0.3, dtype=torch.float64), process.prior()
    )
    rate = torch.bincount(z.flatten(), minlength=5) / z.numel()
    assert ((rate - expected).abs() <= 4.5 * (expected * (1 - expected) / z.numel()).sqrt() + 1e-12).all()
    assert torch.allclose(process.prior()[z], process.prior_of(z))


@pytest.mark.parametrize("same", [True, False])
def test_alpha_that_rounds_to_one_is_finite(same: bool) -> None:
    """Polynomial times below 1e-8 give alpha = 1 in float64; the bound there is that of the largest alpha below 1."""
    log_p = torch.log_softmax(torch.randn(1, 9, dtype=torch.float64), -1)
    x = torch.tensor([3])
    z, slope = (x if same else x + 1), torch.tensor([-1e-8], dtype=torch.float64)
    values = [
        closed_forms.uniform_bound(log_p, x, z, torch.tensor([alpha], dtype=torch.float64), slope)
        for alpha in (1.0, 1 - 2.0**-53)
    ]
    assert torch.isfinite(values[0]).all()
    assert torch.allclose(values[0], values[1], rtol=1e-9)


def test_losses_of_masked_tokens_and_scores_are_finite_at_a_level_that_rounds_to_one() -> None:
    """As in the bound of uniform noise, alpha = 1 counts as the largest level below 1."""
    ratios = torch.randn(1, 9, dtype=torch.float64)
    x, slope, masked = torch.tensor([3]), torch.tensor([-1e-8], dtype=torch.float64), torch.tensor([True])
    values = []
    for alpha in torch.tensor([[1.0], [1 - 2.0**-53]], dtype=torch.float64):
        made = [plain_forms.score_entropy_uniform(ratios, x, z, alpha, slope) for z in (x, x + 1)]
        made.append(plain_forms.score_entropy_absorbing(ratios, x, masked, alpha, slope))
        values.append(torch.cat([*made, closed_forms.absorbing_weight(alpha, slope)]))
    assert torch.isfinite(values[0]).all()
    assert torch.allclose(values[0], values[1], rtol=1e-9)


def test_prior_gap_of_absorbing_noise_is_zero_or_infinite() -> None:
    x = torch.tensor([0, 2])
    prior = Absorbing(4).prior()
    assert posterior.prior_gap(torch.tensor(0.0, dtype=torch.float64), prior, x).tolist() == [0.0, 0.0]
    assert posterior.prior_gap(torch.tensor(0.1, dtype=torch.float64), prior, x).tolist() == [math.inf, math.inf]


def test_reconstruction_of_one_token_is_its_conditional_entropy() -> None:
    """With the data's law as belief (leave-one-out of a single token), E -log p(x | z_0) = H(x | z_0)."""
    law = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    prior = Uniform(4).prior()
    for alpha in (0.3, 0.9):
        level = torch.full((16,), alpha, dtype=torch.float64)
        x, z = (torch.arange(16) // 4, torch.arange(16) % 4)
        noisy = posterior.marginal(torch.eye(4, dtype=torch.float64), level[:4], prior)
        joint = (law[:, None] * noisy).flatten()
        conditional = joint / (law @ noisy)[z]
        nats = posterior.reconstruction(law.expand(16, 4), x, z, level, prior)
        assert float((joint * nats).sum()) == pytest.approx(float(-(joint * conditional.log()).sum()), abs=1e-12)


def test_end_terms() -> None:
    process = Uniform(11)
    p, x = belief((20,), process), clean_tokens((20,), process)
    z = torch.where(torch.rand(20) < 0.5, x, clean_tokens((20,), process))
    a = torch.full((20,), 0.2, dtype=torch.float64)
    q = posterior.marginal(F.one_hot(x, 11).double(), a, process.prior())
    kl = (q * (q / process.prior()).log()).sum(-1)
    assert torch.allclose(posterior.prior_gap(a, process.prior(), x), kl, atol=1e-14)
    assert posterior.reconstruction(p, x, x, torch.ones_like(a), process.prior()).abs().max() < 1e-14
    assert (posterior.reconstruction(p, x, z, a, process.prior()) > 0).all()


def test_negative_probabilities_of_a_score_count_as_zero() -> None:
    """Ratios of no belief: one state has less than the noise alone would give it."""
    ratios = torch.tensor([[0.0, -9.0, 2.0]], dtype=torch.float64)
    now, later = (torch.tensor([level], dtype=torch.float64) for level in (0.3, 0.9))
    law = posterior.analytic(ratios, torch.tensor([0]), now, later, Uniform(3).prior())
    assert law[0, :2].tolist() == [0.0, 0.0]
    assert float(law[0, 2]) > 0


def test_categorical_inverts_the_distribution_function() -> None:
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    u = torch.tensor([1e-300, 0.2499, 0.25, 0.2501, 1 - 2.0**-53], dtype=torch.float64)
    assert draws.categorical(probs.expand(5, 5), u).tolist() == [1, 1, 3, 3, 3]
    # u times the total may round to the total itself: then the last state with any mass is drawn
    assert draws.categorical(probs.expand(1, 5), torch.ones(1, dtype=torch.float64)).tolist() == [3]
    assert draws.categorical(torch.ones(1, 300), torch.ones(1, dtype=torch.float64)).tolist() == [299]
    least = torch.tensor([[0.0, 5e-324, 0.0]], dtype=torch.float64)
    assert draws.categorical(least, torch.tensor([0.9], dtype=torch.float64)).tolist() == [1]


def test_categorical_takes_rows_of_any_number_and_shape() -> None:
    """More rows than one block has, in any shape, or no rows: each row has its own draw."""
    count = 3 * draws.block_rows(5000, torch.device("cpu")) + 1
    probs = torch.rand(count, 5000, generator=torch.Generator().manual_seed(0))
    u = Noise.of(0, 0, torch.zeros(1)).uniform("u", count)[0]
    expected = [int((row.double().cumsum(-1) <= x * row.double().sum()).sum()) for row, x in zip(probs, u)]
    assert draws.categorical(probs, u).tolist() == expected
    assert draws.categorical(probs[:6].view(2, 3, 5000), u[:6].view(2, 3)).flatten().tolist() == expected[:6]
    assert int(draws.categorical(probs[0], u[0])) == expected[0]
    assert draws.categorical(probs[:0], u[:0]).tolist() == []
    for rows in ([], [1, 5], list(range(count))):
        chosen = torch.tensor(rows, dtype=torch.int64)
        assert draws.draw_states(probs.log(), chosen, u[chosen]).tolist() == [expected[row] for row in rows]


@pytest.mark.parametrize("num_states", [1, 2, 255, 256, 257, 512, 1000])
def test_categorical_finds_the_state_wherever_the_blocks_end(num_states: int) -> None:
    """Exact counts: integers as probabilities, and u in the middle of each unit of mass."""
    counts = torch.arange(num_states) % 3
    counts[num_states // 2] = 5
    total = int(counts.sum())
    u = (torch.arange(total, dtype=torch.float64) + 0.5) / total
    found = draws.categorical(counts.float().expand(total, -1), u)
    assert torch.equal(torch.bincount(found, minlength=num_states), counts)
    assert torch.equal(found, found.sort().values)


def test_categorical_adds_blocks_in_float64() -> None:
    """A state of probability 1e-9 in a later block is drawn by the last 1e-9 of u."""
    probs = torch.zeros(2, 600)
    probs[:, 3], probs[:, 300] = 1.0, 1e-9
    assert draws.categorical(probs, torch.tensor([1 - 2e-9, 1 - 5e-10], dtype=torch.float64)).tolist() == [3, 300]


def test_categorical_keeps_the_tail() -> None:
    """A Zipf law over 50 257 tokens, drawn with float32 Gumbel noise, loses tokens that must appear."""
    probs = 1 / torch.arange(1, 50258, dtype=torch.float64) ** 1.5
    probs = (probs / probs.sum()).float()
    count = 20_000
    u = Noise.of(0, 0, torch.zeros(1)).uniform("u", count)[0]
    found = torch.cat([draws.categorical(probs.expand(1000, -1), part) for part in torch.split(u, 1000)])
    edges = [0, 1, 10, 100, 1000, 50257]
    for low, high in zip(edges[:-1], edges[1:]):
        expected = float(probs[low:high].double().sum())
        rate = float(((found >= low) & (found < high)).double().mean())
        assert abs(rate - expected) < 4.5 * math.sqrt(expected * (1 - expected) / count)
