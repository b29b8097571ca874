"""The fused output head: a formula read a few rows at a time equals the plain formula, in value and in gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import plain_forms
from support.plain_forms import divergence
from support.small_heads import BATCH, LENGTH, WIDTH, inputs, network, relative
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from duality.denoisers.readouts import MeanDenoiser
from duality.diffusion import Divergence, closed_forms
from duality.fused.formulas import (
    AbsorbingScoreEntropy,
    BeliefDivergence,
    CrossEntropy,
    Formula,
    PosteriorDivergence,
    UniformBound,
    UniformDivergence,
    UniformScoreEntropy,
    _sum_log1p,
)
from duality.fused.lazy import Belief, LazyLogits, Ratios, _belief_from
from duality.fused.loss import fused_loss
from duality.methods.diffusion_bert import _excess, _speed, _SpindleNats
from duality.methods.duo import Duo
from duality.networks import SIZES
from duality.noise import Noise
from duality.training.distillation import DCD

Mode: Any = TorchDispatchMode  # torch gives it no types


ALPHAS = [1e-9, 1e-4, 0.03, 0.5, 0.97, 1 - 1e-4, 1 - 1e-9]


Case = tuple[Callable[[Tensor], Tensor], Callable[[Any], Formula]]


def tokens(num_states: int) -> tuple[Tensor, Tensor]:
    """Clean tokens, and noisy ones of which a third are clean."""
    noise = Noise.of(0, 0, torch.arange(BATCH))
    x, other = (noise.integers(tag, num_states, LENGTH) for tag in ("x", "other"))
    return x, torch.where(noise.uniform("same", LENGTH) < 1 / 3, x, other)


def belief_cases(num_states: int, alpha: float) -> dict[str, Case]:
    """The plain formula of log beliefs and the fused formula, for a belief over all states."""
    x, z = tokens(num_states)
    level = torch.full((BATCH, 1), alpha, dtype=torch.float64)
    slope = -torch.linspace(0.5, 1.5, BATCH, dtype=torch.float64)[:, None]
    later = level + (1 - level) * 0.3
    time, skew = 1 - level, torch.linspace(-0.2, 0.3, num_states, dtype=torch.float64)
    target = torch.randn(BATCH, LENGTH, num_states, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target = torch.log_softmax(target.float().double(), -1)

    def surprisal(log_p: Tensor) -> Tensor:
        return plain_forms.absorbing_bound(log_p, x, torch.ones_like(x, dtype=torch.bool), level, slope)

    def spindle(log_p: Tensor) -> Tensor:
        mean = (log_p.exp() * _excess(skew, time)[:, None].to(log_p.dtype)).sum(-1).double()
        own = _speed(skew[x], time) * -log_p.gather(-1, x[..., None])[..., 0].double()
        return own + mean - _excess(skew[x], time)

    weight = closed_forms.absorbing_weight(level, slope)
    made: dict[str, Case] = {
        "surprisal": (surprisal, lambda dtype: CrossEntropy(x, weight)),
        "bound": (
            lambda log_p: closed_forms.uniform_bound(log_p, x, z, level, slope),
            lambda dtype: UniformBound(x, z, level, slope, num_states),
        ),
        "T-step": (
            lambda log_p: 7 * plain_forms.uniform_divergence(log_p, x, z, level, later),
            lambda dtype: UniformDivergence(x, z, level, later, num_states, 7),
        ),
        "spindle": (spindle, lambda dtype: _SpindleNats(x, time, torch.ones_like(time), skew)),
    }
    kinds: tuple[Divergence, ...] = ("kl-backward", "kl-forward", "mse", "tvd")
    gaps: dict[str, Case] = {kind: gap_case(kind, target) for kind in kinds}
    evidence = torch.log1p(num_states * level / (1 - level)).expand(x.shape)
    return {**made, **gaps, **{f"posterior {kind}": posterior_case(kind, target, z, x, evidence) for kind in kinds}}


def posterior_case(kind: Divergence, target: Tensor, z: Tensor, target_z: Tensor, evidence: Tensor) -> Case:
    """The target's token and evidence are others than those of the belief."""

    def posterior(log_p: Tensor, states: Tensor, own: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(states, log_p.shape[-1])
        return torch.log_softmax(log_p.double() + own[..., None] * one_hot, -1)

    return (
        lambda log_p: divergence(kind, posterior(log_p, z, evidence), posterior(target, target_z, evidence + 0.7)),
        lambda dtype: PosteriorDivergence(_belief_from(target.to(dtype)), kind, z, evidence, target_z, evidence + 0.7),
    )


def gap_case(kind: Divergence, target: Tensor) -> Case:
    return (
        lambda log_p: divergence(kind, log_p, target.to(log_p.dtype)),
        lambda dtype: BeliefDivergence(_belief_from(target.to(dtype)), kind),
    )


NAMES = [*belief_cases(4, 0.5)]


def compare(
    plain: Callable[[Tensor], Tensor], belief: LazyLogits, dense: Tensor, formula: Formula, inputs: list[Tensor]
) -> tuple[tuple[Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]:
    """(nats, gradients) of the plain formula under autograd, and of the fused one."""
    nats = plain(dense)
    expected = torch.autograd.grad(nats.sum() / 3, inputs)
    loss = fused_loss(belief, formula)
    found = torch.autograd.grad(loss.total / 3, inputs)
    assert torch.allclose(loss.total.detach(), loss.nats.sum())
    return (nats.detach(), list(expected)), (loss.nats, list(found))


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("num_states", [2, 11, 300])
def test_fused_is_plain(name: str, alpha: float, num_states: int) -> None:
    plain, make = belief_cases(num_states, alpha)[name]
    vectors, head = inputs(num_states, torch.float64)
    belief = Belief(vectors, head, num_states, num_states)
    all_rows = [vectors, head.weight, head.bias]
    (nats, expected), (got, found) = compare(plain, belief, belief.log_probs(), make(torch.float64), all_rows)
    assert torch.allclose(got, nats, rtol=1e-9, atol=1e-9)
    # At the ends the plain form itself loses digits in float64: its gradient is a difference of larger terms.
    tolerance = 1e-6 if alpha in (ALPHAS[0], ALPHAS[-1]) else 1e-10
    for one, other in zip(found, expected):
        assert relative(one, other) < tolerance


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("num_states", [27, 5000])
def test_fused_in_float32_is_plain_in_float64(name: str, alpha: float, num_states: int) -> None:
    plain, make = belief_cases(num_states, alpha)[name]
    vectors, head = inputs(num_states, torch.float64)
    dense = Belief(vectors, head, num_states, num_states).log_probs()
    expected = torch.autograd.grad(plain(dense).sum(), [vectors, head.weight, head.bias])
    single, narrow = inputs(num_states, torch.float32)
    belief = Belief(single, narrow, num_states, num_states)
    loss = fused_loss(belief, make(torch.float32))
    assert relative(loss.nats, plain(dense).detach()) < 1e-5
    found = torch.autograd.grad(loss.total, [single, narrow.weight, narrow.bias])
    assert [each.dtype for each in found] == [torch.float32] * 3
    for one, other in zip(found, expected):
        if name == "posterior tvd" and alpha == ALPHAS[-1]:  # two numbers near 1, whose order decides the gradient
            assert float((one.double() - other).norm()) < 1e-7
        else:
            assert relative(one, other) < 1e-5


def test_tokens_of_very_different_levels_are_read_together() -> None:
    """In float32; each is as precise as alone."""
    num_states = 27
    x, z = tokens(num_states)
    level = torch.tensor([[*ALPHAS[:-1], 1 - 1e-12]], dtype=torch.float64)
    slope = -torch.ones_like(level)
    vectors, head = inputs(num_states, torch.float64)
    nats = closed_forms.uniform_bound(Belief(vectors, head, 27, 27).log_probs(), x, z, level, slope)
    (expected,) = torch.autograd.grad(nats.sum(), vectors)
    single, narrow = inputs(num_states, torch.float32)
    loss = fused_loss(Belief(single, narrow, 27, 27), UniformBound(x, z, level, slope, num_states))
    (found,) = torch.autograd.grad(loss.total, single)
    assert torch.allclose(loss.nats, nats.detach(), rtol=1e-4)
    assert bool(((found - expected).norm(dim=-1) < 1e-4 * expected.norm(dim=-1)).all())


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("noise", ["uniform", "absorbing"])
def test_fused_score_entropy_is_plain(alpha: float, noise: str) -> None:
    num_states = 12
    x, z = tokens(num_states - 1)
    level, slope = torch.full((BATCH, 1), alpha, dtype=torch.float64), -torch.ones(BATCH, 1, dtype=torch.float64)
    formula: Formula = UniformScoreEntropy(x, z, level, slope, num_states)
    offset = None
    if noise == "absorbing":
        z = torch.full_like(x, num_states - 1)
        formula, offset = AbsorbingScoreEntropy(x, level, slope), torch.linspace(-1, 1, BATCH, dtype=torch.float64)

    def plain(ratios: Tensor) -> Tensor:
        if noise == "uniform":
            return plain_forms.score_entropy_uniform(ratios, x, z, level, slope)
        return plain_forms.score_entropy_absorbing(ratios, x, z == num_states - 1, level, slope)

    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        vectors, head = inputs(num_states, torch.float64)
        dense = Ratios(vectors, head, num_states, num_states, z, offset).log_ratios()
        nats = plain(dense)
        expected = torch.autograd.grad(nats.sum(), [vectors, head.weight, head.bias])
        own, narrow = inputs(num_states, dtype)
        loss = fused_loss(Ratios(own, narrow, num_states, num_states, z, offset), formula)
        assert relative(loss.nats, nats.detach()) < tolerance
        for one, other in zip(torch.autograd.grad(loss.total, [own, narrow.weight, narrow.bias]), expected):
            assert relative(one, other) < tolerance


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("kind", ["kl-backward", "kl-forward"])
def test_both_heads_of_a_distillation_are_read_together(kind: Divergence) -> None:
    """Student and teacher as vectors and heads; the teacher's get no gradient."""
    vectors, head = inputs(9, torch.float64)
    other, teacher = (each.detach().roll(1, 0) for each in (vectors, head.weight))
    taught = nn.Linear(WIDTH, 9).double()
    taught.weight.data = teacher
    belief, target = Belief(vectors, head, 9, 9), Belief(other.requires_grad_(), taught, 9, 9)
    plain = divergence(kind, belief.log_probs(), target.log_probs().detach())
    expected = torch.autograd.grad(plain.sum(), [vectors, head.weight])
    loss = fused_loss(belief, BeliefDivergence(target, kind))
    torch.autograd.backward(loss.total)
    assert other.grad is None
    assert taught.weight.grad is None
    assert torch.allclose(loss.nats, plain.detach(), atol=1e-12)
    assert vectors.grad is not None
    assert head.weight.grad is not None
    assert relative(vectors.grad, expected[0]) < 1e-10
    assert relative(head.weight.grad, expected[1]) < 1e-10


@pytest.mark.parametrize("kind", ["kl-backward", "kl-forward", "mse", "tvd"])
def test_states_that_both_beliefs_exclude_have_no_divergence_and_no_gradient(kind: Divergence) -> None:
    """With a column for the excluded state and without."""
    torch.manual_seed(0)
    few, target = torch.randn(2, BATCH, LENGTH, 5, dtype=torch.float64).log_softmax(-1)
    few.requires_grad_()
    nats = divergence(kind, torch.log_softmax(few, -1), target)
    (expected,) = torch.autograd.grad(nats.sum(), few)
    wide, taught = (nn.functional.pad(each.detach(), (0, 1), value=-torch.inf) for each in (few, target))
    for student in (few, wide.requires_grad_()):
        for teacher in (target, taught):
            loss = fused_loss(_belief_from(student), BeliefDivergence(_belief_from(teacher), kind))
            assert torch.allclose(loss.nats, nats.detach(), atol=1e-12)
            (found,) = torch.autograd.grad(loss.total, student)
            assert torch.allclose(found[..., :5], expected, atol=1e-12)
            assert not found[..., 5:].any()


@pytest.mark.parametrize("name", ["surprisal", "bound"])
@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_a_constant_added_to_a_row_of_logits_changes_nothing(name: str, shift: float) -> None:
    plain, make = belief_cases(11, 0.5)[name]
    vectors, head = inputs(11, torch.float64)
    logits = head(vectors).detach().requires_grad_()
    dense = torch.log_softmax(logits, -1)
    belief = _belief_from(logits + shift)
    (nats, (expected,)), (got, (found,)) = compare(plain, belief, dense, make(torch.float64), [logits])
    assert torch.allclose(got, nats, atol=1e-9)
    assert torch.allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16 weights", "autocast"])
def test_the_softmax_is_float32_for_any_precision_of_the_network(autocast: bool) -> None:
    """The loss is the float32 formula of logits in the network's precision, up to the rounding of float32."""
    model = network(Duo(), dtype=torch.float32 if autocast else torch.bfloat16)
    noise = Noise.of(0, 3, torch.arange(4))
    x, z = noise.integers("x", 13, 9), noise.integers("z", 13, 9)
    alpha = torch.linspace(0.1, 0.9, 4, dtype=torch.float64)
    formula = UniformBound(x, z, alpha[:, None], -torch.ones(4, 1, dtype=torch.float64), 13)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        belief = model.belief(z, alpha)
        logits = model.backbone.head(belief.vectors)
        loss = fused_loss(belief, formula)
    assert logits.dtype == torch.bfloat16
    plain = closed_forms.uniform_bound(
        torch.log_softmax(logits.float(), -1), x, z, alpha[:, None], -torch.ones(4, 1, dtype=torch.float64)
    )
    assert relative(loss.nats, plain.detach()) < 1e-5
    trained = [value for value in model.parameters() if value.requires_grad]
    expected = torch.autograd.grad(plain.sum(), trained, retain_graph=True)
    found = torch.autograd.grad(loss.total, trained)
    assert [each.dtype for each in found] == [each.dtype for each in trained]
    for one, other in zip(found, expected):
        assert relative(one, other.double()) < 0.02  # products in bfloat16 on both sides


@pytest.mark.usefixtures("few_rows")
def test_gradients_of_a_bfloat16_head_are_summed_in_float32() -> None:
    """Over many chunks: in bfloat16 the sum would soon be too large for a further term to change it."""
    torch.manual_seed(0)
    count, num_states = 2000, 11
    _, head = inputs(num_states, torch.bfloat16)
    vectors = (1 + torch.randn(1, count, WIDTH)).bfloat16().requires_grad_()
    x = torch.zeros(1, count, dtype=torch.int64)
    loss = fused_loss(Belief(vectors, head, num_states, num_states), CrossEntropy(x, torch.ones(1, 1)))
    found = torch.autograd.grad(loss.total, [head.weight, head.bias])
    logits = head(vectors).double()
    slopes = (torch.softmax(logits, -1) - nn.functional.one_hot(x, num_states))[0].detach()
    for one, other in zip(found, (slopes.T @ vectors[0].detach().double(), slopes.sum(0))):
        assert relative(one, other) < 0.003


@pytest.mark.parametrize("largest", [1e-6, 3.0, 1e4, 1e12, 1e30])
def test_sums_of_logarithms_by_products(largest: float) -> None:
    """In float32 and for any number of states, also where products would overflow."""
    torch.manual_seed(0)
    for num_states in (1, 2, 3, 6, 7, 1001):
        share = torch.rand(20, num_states, dtype=torch.float64)
        u = largest * share / share.sum(-1, keepdim=True)
        expected = torch.log1p(u.float().double()).sum(-1)
        assert torch.allclose(_sum_log1p(u.float(), u.sum(-1)).double(), expected, rtol=2e-6)
        assert torch.allclose(_sum_log1p(u, u.sum(-1)), torch.log1p(u).sum(-1), rtol=1e-12)


def test_a_loss_is_differentiated_once() -> None:
    vectors, head = inputs(6, torch.float64)
    x, _ = tokens(6)
    loss = fused_loss(Belief(vectors, head, 6, 6), CrossEntropy(x, torch.ones(BATCH, 1)))
    torch.autograd.backward(loss.total, retain_graph=True)
    with pytest.raises(RuntimeError, match="compute it again"):
        torch.autograd.backward(loss.total)


def test_a_frozen_head_gets_no_gradient_and_frozen_vectors_need_none() -> None:
    vectors, head = inputs(6, torch.float64)
    x, _ = tokens(6)
    formula = CrossEntropy(x, torch.ones(BATCH, 1, dtype=torch.float64))
    reference = torch.autograd.grad(fused_loss(Belief(vectors, head, 6, 6), formula).total, [vectors, head.weight])
    torch.autograd.backward(fused_loss(Belief(vectors.detach(), head, 6, 6), formula).total)
    assert head.weight.grad is not None
    assert torch.allclose(head.weight.grad, reference[1])
    head.requires_grad_(False)
    head.weight.grad = None
    torch.autograd.backward(fused_loss(Belief(vectors, head, 6, 6), formula).total)
    assert head.weight.grad is None
    assert vectors.grad is not None
    assert torch.allclose(vectors.grad, reference[0])
    with torch.no_grad():
        assert not fused_loss(Belief(vectors, head, 6, 6), formula).total.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize("which", ["bound", "posterior DCD"])
def test_the_logits_of_a_batch_are_never_materialised(which: str) -> None:
    """No tensor that a loss and its gradient make has half as many numbers as the logits, or more."""
    sizes: list[int] = []

    class Sizes(Mode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            sizes.extend(leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor))
            return made

    model = MeanDenoiser(SIZES["nano"]().build(20_000))
    nn.init.normal_(model.backbone.head.weight)
    noise = Noise.of(0, 0, torch.arange(8))
    x = noise.integers("x", 20_000, 256)
    rounds = DCD(rounds=1, delta=0.1, compare="posterior").phases(Duo(), 20_000, model)
    objective = (Duo().phases(20_000, 10) if which == "bound" else rounds)[-1].objective
    with Sizes():
        torch.autograd.backward(objective(model, x, noise.uniform("t", 1)[:, 0], noise).total)
    assert max(sizes) < 8 * 256 * 20_000 / 4


@pytest.mark.parametrize("shift", [0.0, 1000.0, -1000.0])
def test_a_shift_of_the_logits_changes_no_digit(shift: float) -> None:
    """log p is read after the largest logit is subtracted: at alpha -> 1 its error is divided by 1 - alpha."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(1, 64, 300, generator=generator, dtype=torch.float64) * 3
    exact = (exact * 64).round() / 64  # so that the shifted logits are the same numbers in float32
    x = torch.randint(0, 300, (1, 64), generator=generator)
    expected = -torch.log_softmax(exact, -1).gather(-1, x[..., None])[..., 0]
    lazy_logits = _belief_from((exact + shift).float())
    one = torch.ones(1, 1, dtype=torch.float64)
    assert float((fused_loss(lazy_logits, CrossEntropy(x, one)).nats - expected).abs().max()) < 2e-6
    alpha = torch.full((1, 1), 1 - 1e-7, dtype=torch.float64)
    found = fused_loss(lazy_logits, UniformBound(x, x, alpha, -one, 300)).nats
    plain = closed_forms.uniform_bound(torch.log_softmax(exact, -1), x, x, alpha, -one)
    assert torch.allclose(found, plain, rtol=1e-4)
