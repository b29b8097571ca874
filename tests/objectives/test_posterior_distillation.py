"""What is compared in Discrete Consistency Distillation, exactly on a toy of K = 8 tokens and sequences of two.

The statements are those of objectives/consistency.py: a calibrated model, whose output is the exact cavity belief,
stays where it is or does not. Expectations are sums over all sequences; the pair (z_s, z_t) comes from one Gaussian
trajectory, as in DCD, or from the chain of the noise itself.
"""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from support.oracles import Oracle, all_states
from support.plain_forms import divergence
from torch import Tensor, nn
from torch.nn import functional as F

from duality.denoisers.readouts import MeanDenoiser
from duality.diffusion import Compare, Divergence, draws
from duality.diffusion.gaussian import coupled_argmax
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import Dual, LinearLogSnr
from duality.networks.dit import DiT
from duality.noise import Noise
from duality.objectives.consistency import Consistency

Pairs = Literal["trajectory", "chain"]
K = 8
LITTLE_NOISE, MUCH_NOISE = (0.8, 0.9), (0.1, 0.2)
KINDS: tuple[Divergence, ...] = ("kl-backward", "kl-forward", "mse", "tvd")
COMPARES: tuple[Compare, ...] = ("output", "posterior")
SCHEDULE = Dual(K, LinearLogSnr(), 0.0062, 0.9987)


def toy_law() -> Tensor:
    """p(x1, x2): few pairs have most of the mass, as in text."""
    table = torch.rand(K, K, generator=torch.Generator().manual_seed(5), dtype=torch.float64) ** 6 + 1e-6
    return table / table.sum()


LAW = toy_law()
ORACLE = Oracle(LAW, Uniform(K), leave_out=True)
STATES = all_states(K)


def posterior(log_c: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
    """log pi(x) with pi(x) proportional to c(x) [1 + alpha K / (1 - alpha) 1{x = z}]; levels (...) are those of z."""
    return torch.log_softmax(log_c + torch.log1p(alpha * K / (1 - alpha))[..., None] * F.one_hot(z, K), -1)


def pair_law(pairs: Pairs, alpha_t: float, alpha_s: float) -> Tensor:
    """P(z_s, z_t | x), (K, K, K) by x, z_s, z_t."""
    eye = torch.eye(K, dtype=torch.float64)
    if pairs == "chain":
        ratio = alpha_t / alpha_s
        return torch.einsum("xs,st->xst", alpha_s * eye + (1 - alpha_s) / K, ratio * eye + (1 - ratio) / K)
    clean_t, clean_s = (alpha + (1 - alpha) / K for alpha in (alpha_t, alpha_s))
    # clean at both, clean at s only, and otherwise the same token at both
    both = clean_t * torch.einsum("xs,xt->xst", eye, eye)
    at_s = (clean_s - clean_t) / (K - 1) * torch.einsum("xs,xt->xst", eye, 1 - eye)
    return both + at_s + (1 - clean_s) / (K - 1) * torch.einsum("xs,st->xst", 1 - eye, eye)


def expected_loss(
    logits: Tensor, pairs: Pairs, compare: Compare, kind: Divergence, alpha_t: float, alpha_s: float
) -> Tensor:
    """E of the loss of a student with ``logits`` (all z_t, 2, K) and the oracle as its teacher."""
    law = pair_law(pairs, alpha_t, alpha_s)
    joint = torch.einsum("xy,xac,ybd->abcd", LAW, law, law).reshape(len(STATES), len(STATES))
    level_t, level_s = (torch.full(STATES.shape, alpha, dtype=torch.float64) for alpha in (alpha_t, alpha_s))
    teacher, student = ORACLE.log_probs(STATES, level_s[:, 0]), torch.log_softmax(logits, -1)
    if compare == "posterior":
        teacher, student = posterior(teacher, STATES, level_s), posterior(student, STATES, level_t)
    shape = (len(STATES), len(STATES), 2, K)
    nats = divergence(kind, student.expand(shape), teacher[:, None].expand(shape))
    return (joint[..., None] * nats).sum()


def gradient(pairs: Pairs, compare: Compare, kind: Divergence, levels: tuple[float, float]) -> float:
    """The norm of the gradient of the expected loss with respect to the logits of the oracle."""
    logits = ORACLE.log_probs(STATES, torch.full((len(STATES),), levels[0], dtype=torch.float64)).requires_grad_()
    (found,) = torch.autograd.grad(expected_loss(logits, pairs, compare, kind, *levels), logits)
    return float(found.norm())


def times_of(alpha_t: float, alpha_s: float) -> tuple[float, float]:
    """t and delta of the schedule at which the two levels are these."""
    t, s = SCHEDULE.time(torch.tensor([alpha_t, alpha_s], dtype=torch.float64)).tolist()
    return t, t - s


def draw_data(noise: Noise) -> Tensor:
    pair = draws.categorical(LAW.flatten().expand(len(noise.keys), -1), noise.uniform("data"))
    return torch.stack([pair // K, pair % K], 1)


# --- a calibrated model


@pytest.mark.parametrize("levels", [LITTLE_NOISE, (0.4, 0.6), MUCH_NOISE], ids=str)
def test_pairs_of_a_chain_leave_a_calibrated_model_where_it_is(levels: tuple[float, float]) -> None:
    """With kl-forward and posteriors only; outputs, or kl-backward, move it."""
    assert gradient("chain", "posterior", "kl-forward", levels) < 1e-14
    assert gradient("chain", "output", "kl-forward", levels) > 1e-4
    assert gradient("chain", "posterior", "kl-backward", levels) > 1e-4


def test_pairs_of_a_trajectory_leave_it_nearly_where_it_is_if_little_noise_is_left() -> None:
    """A tenth of the gradient of outputs there; in much noise more than it, where outputs hardly depend on z at all."""
    little, much = (
        {compare: gradient("trajectory", compare, "kl-forward", levels) for compare in COMPARES}
        for levels in (LITTLE_NOISE, MUCH_NOISE)
    )
    assert 1e-4 < little["posterior"] < 0.12 * little["output"]
    assert 1.5 * much["output"] < much["posterior"]


def test_what_the_trajectory_tells_the_target_too_much_is_at_the_token_itself() -> None:
    """E[pi(z_s) | z_t] - pi(z_t): positive at z_t, because a trajectory changes fewer tokens than the chain."""
    for alpha_t, alpha_s in (LITTLE_NOISE, (0.4, 0.6), MUCH_NOISE):
        law = pair_law("trajectory", alpha_t, alpha_s)
        joint = torch.einsum("xy,xac,ybd->abcd", LAW, law, law).reshape(len(STATES), len(STATES))
        now, later = (torch.full(STATES.shape, alpha, dtype=torch.float64) for alpha in (alpha_t, alpha_s))
        target = posterior(ORACLE.log_probs(STATES, later[:, 0]), STATES, later).exp()
        mean = torch.einsum("st,slk->tlk", joint, target) / joint.sum(0)[:, None, None]
        excess = mean - posterior(ORACLE.log_probs(STATES, now[:, 0]), STATES, now).exp()
        at_z = excess.gather(-1, STATES[..., None])[..., 0]
        assert float(at_z.min()) > 0
        assert float((joint.sum(0)[:, None] * at_z).sum() / 2) > 1e-3


@pytest.mark.parametrize("compare", COMPARES)
def test_the_objective_has_the_exact_expected_loss(compare: Compare) -> None:
    """Consistency with the oracle as student and teacher, by Monte Carlo, against the sum over all sequences."""
    count, (t, delta) = 10_000, times_of(0.5, 0.7)
    noise = Noise.of(0, 0, torch.arange(count))
    objective = Consistency(ORACLE, SCHEDULE, delta, "kl-forward", compare)
    loss = objective(ORACLE, draw_data(noise), torch.full((count,), t, dtype=torch.float64), noise).nats.sum(-1)
    logits = ORACLE.log_probs(STATES, torch.full((len(STATES),), 0.5, dtype=torch.float64))
    exact = float(expected_loss(logits, "trajectory", compare, "kl-forward", 0.5, 0.7))
    assert abs(float(loss.mean()) - exact) < 4.5 * float(loss.std()) / math.sqrt(count)


# --- the cavity after distillation


def own_influence(log_c: Tensor, weights: Tensor) -> float:
    """Mean total variation between the outputs at two values of the position's own token, the other one fixed."""
    first = log_c[:, 0].exp().view(K, K, K)  # own, other, x
    second = log_c[:, 1].exp().view(K, K, K).transpose(0, 1)
    found = 0.0
    for belief, others in ((first, weights.sum(0)), (second, weights.sum(1))):
        apart = (belief[:, None] - belief[None]).abs().sum(-1).mean((0, 1)) / 2
        found += float((others * apart).sum()) / 2
    return found


def distilled_influence(compare: Compare, steps: int = 50) -> float:
    """Of a student that begins as the oracle, after steps of the expected loss with DCD's pairs, in little noise."""
    alpha = LITTLE_NOISE[0]
    logits = ORACLE.log_probs(STATES, torch.full((len(STATES),), alpha, dtype=torch.float64)).requires_grad_()
    noisy = alpha * torch.eye(K, dtype=torch.float64) + (1 - alpha) / K
    weights = noisy.T @ LAW @ noisy
    assert own_influence(logits.detach(), weights) < 1e-14
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(expected_loss(logits, "trajectory", compare, "kl-forward", *LITTLE_NOISE))
        optimizer.step()
    return own_influence(torch.log_softmax(logits.detach(), -1), weights)


def test_a_cavity_stays_a_cavity_if_posteriors_are_compared() -> None:
    """The output of an exact cavity does not depend on the position's own token. Compared by outputs it learns to."""
    found = {compare: distilled_influence(compare) for compare in COMPARES}
    assert found["output"] > 0.05
    assert found["posterior"] < 0.2 * found["output"]


# --- the objective with a network


def network(seed: int) -> MeanDenoiser:
    torch.manual_seed(seed)
    built = DiT(width=16, depth=1, heads=2, time_width=8, dropout=0.0).build(K)
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.3)
    return MeanDenoiser(built).double()


def batch(rows: int = 6, length: int = 5) -> tuple[Tensor, Tensor, Noise]:
    noise = Noise.of(1, 0, torch.arange(rows))
    return noise.integers("x", K, length), noise.uniform("t", 1)[:, 0], noise


@pytest.mark.parametrize("kind", KINDS)
def test_posteriors_are_compared_as_in_the_formula(kind: Divergence) -> None:
    """Loss and gradients of the objective against the dense formula, in float64; padding has no loss."""
    student, teacher, delta = network(0), network(1), 0.3
    x, t, noise = batch()
    valid = torch.ones_like(x, dtype=torch.bool)
    valid[2:, 3:] = False
    loss = Consistency(teacher, SCHEDULE, delta, kind, "posterior")(student, x, t, noise, valid)
    found = torch.autograd.grad(loss.total, tuple(student.parameters()))
    s = (t - delta).clamp_min(0.0)
    z_t, z_s = coupled_argmax(x, SCHEDULE.mu(t)[:, None], SCHEDULE.mu(s)[:, None], K, noise)
    alpha_t, alpha_s = SCHEDULE.alpha(t), SCHEDULE.alpha(s)
    with torch.no_grad():
        target = posterior(teacher.log_probs(z_s, alpha_s, valid), z_s, alpha_s[:, None].expand(x.shape))
    output = student.log_probs(z_t, alpha_t, valid)
    nats = divergence(kind, posterior(output, z_t, alpha_t[:, None].expand(x.shape)), target)
    nats = torch.where(valid, nats, 0.0)
    assert torch.allclose(loss.nats, nats.detach(), rtol=1e-9, atol=1e-12)
    expected = torch.autograd.grad(nats.sum(), tuple(student.parameters()), allow_unused=True)
    for one, other in zip(found, expected):
        assert other is not None
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-11)
    outputs = Consistency(teacher, SCHEDULE, delta, kind, "output")(student, x, t, noise, valid)
    assert not torch.allclose(loss.nats, outputs.nats, rtol=0.01)


class Rounded(Dual):
    """A schedule whose clean end is rounded to 1."""

    def alpha(self, t: Tensor) -> Tensor:
        return torch.where(t == 0, 1.0, super().alpha(t))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_teacher_without_noise_is_certain_and_the_loss_is_finite(kind: Divergence, dtype: torch.dtype) -> None:
    """alpha_s rounds to 1: the teacher's posterior is the token z_s, and the loss that of the largest level below 1."""
    clean = Rounded(K, LinearLogSnr(), 0.0062, 1 - 2.0**-53)
    student, teacher = network(0).to(dtype), network(1).to(dtype)
    x, _, noise = batch()
    t = torch.full((len(x),), 0.4, dtype=torch.float64)
    assert float(clean.alpha(torch.zeros(1, dtype=torch.float64))) == 1.0
    loss = Consistency(teacher, clean, 0.5, kind, "posterior")(student, x, t, noise)
    gradients = torch.autograd.grad(loss.total, tuple(student.parameters()))
    assert bool(loss.nats.isfinite().all())
    assert all(bool(each.isfinite().all()) for each in gradients)
    z_t, z_s = coupled_argmax(x, clean.mu(t)[:, None], clean.mu(t - 0.4)[:, None], K, noise)
    assert torch.equal(z_s, x)
    own = posterior(
        student.log_probs(z_t, clean.alpha(t)).double().detach(), z_t, clean.alpha(t)[:, None].expand(x.shape)
    )
    at_x = own.gather(-1, x[..., None])[..., 0]
    expected = {"kl-forward": -at_x, "tvd": 1 - at_x.exp()}
    if kind in expected:  # from a point mass; the other two would be infinite
        assert torch.allclose(loss.nats, expected[kind], rtol=1e-4, atol=1e-6)
