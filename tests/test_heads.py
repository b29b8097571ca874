"""The fused output head: what is read a few rows at a time is the plain formula under autograd, value and gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from duality import answers, functional, heads
from duality.answers import Answer, Belief, Ratios, given
from duality.backbones.dit import SIZES
from duality.baselines import BertMouth, DiffusionBERT
from duality.baselines.diffusion_bert import SpindleNats, excess, speed
from duality.denoiser import MeanDenoiser, SubsDenoiser
from duality.distillation import DCD, SDTT
from duality.divergences import Divergence, divergence
from duality.formulas import (
    AbsorbingScoreEntropy,
    Gap,
    Surprisal,
    UniformBound,
    UniformDivergence,
    UniformScoreEntropy,
    sum_log1p,
)
from duality.heads import Formula, fused_loss
from duality.methods import AR, D3PM, MDLM, SEDD, UDLM, Duo
from duality.noise import Noise
from duality.processes import Absorbing
from duality.protocols import Vocabulary
from duality.wrappers import Clamped, Temperature, TopP

Mode: Any = TorchDispatchMode  # torch gives it no types

BATCH, LENGTH, WIDTH = 3, 7, 5
ALPHAS = [1e-9, 1e-4, 0.03, 0.5, 0.97, 1 - 1e-4, 1 - 1e-9]

Case = tuple[Callable[[Tensor], Tensor], Callable[[Any], Formula]]


def inputs(num_states: int, dtype: torch.dtype) -> tuple[Tensor, nn.Linear]:
    """Vectors and a head whose beliefs differ by some nats."""
    torch.manual_seed(num_states)
    head = nn.Linear(WIDTH, num_states).to(torch.float64)
    nn.init.normal_(head.weight, std=0.8)
    nn.init.normal_(head.bias, std=0.5)
    vectors = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    # the same numbers in both precisions
    vectors, weight, bias = (each.float().to(dtype) for each in (vectors, head.weight.data, head.bias.data))
    head = head.to(dtype)
    head.weight.data, head.bias.data = weight, bias
    return vectors.requires_grad_(), head


def tokens(num_states: int) -> tuple[Tensor, Tensor]:
    """Clean tokens, and noisy ones of which a third are clean."""
    noise = Noise.of(0, 0, torch.arange(BATCH))
    x, other = (noise.integers(tag, num_states, LENGTH) for tag in ("x", "other"))
    return x, torch.where(noise.uniform("same", LENGTH) < 1 / 3, x, other)


def belief_cases(num_states: int, alpha: float) -> dict[str, Case]:
    """Plain formula of log beliefs, fused formula; for a belief over all the states."""
    x, z = tokens(num_states)
    level = torch.full((BATCH, 1), alpha, dtype=torch.float64)
    slope = -torch.linspace(0.5, 1.5, BATCH, dtype=torch.float64)[:, None]
    later = level + (1 - level) * 0.3
    time, skew = 1 - level, torch.linspace(-0.2, 0.3, num_states, dtype=torch.float64)
    target = torch.randn(BATCH, LENGTH, num_states, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target = torch.log_softmax(target.float().double(), -1)

    def surprisal(log_p: Tensor) -> Tensor:
        return functional.absorbing_bound(log_p, x, torch.ones_like(x, dtype=torch.bool), level, slope)

    def spindle(log_p: Tensor) -> Tensor:
        mean = (log_p.exp() * excess(skew, time)[:, None].to(log_p.dtype)).sum(-1).double()
        own = speed(skew[x], time) * -log_p.gather(-1, x[..., None])[..., 0].double()
        return own + mean - excess(skew[x], time)

    weight = functional.absorbing_weight(level, slope)
    made: dict[str, Case] = {
        "surprisal": (surprisal, lambda dtype: Surprisal(x, weight)),
        "bound": (
            lambda log_p: functional.uniform_bound(log_p, x, z, level, slope),
            lambda dtype: UniformBound(x, z, level, slope, num_states),
        ),
        "T-step": (
            lambda log_p: 7 * functional.uniform_divergence(log_p, x, z, level, later),
            lambda dtype: UniformDivergence(x, z, level, later, num_states, 7),
        ),
        "spindle": (spindle, lambda dtype: SpindleNats(x, time, torch.ones_like(time), skew)),
    }
    kinds: tuple[Divergence, ...] = ("kl-backward", "kl-forward", "mse", "tvd")
    return {**made, **{kind: gap_case(kind, target) for kind in kinds}}


def gap_case(kind: Divergence, target: Tensor) -> Case:
    return (
        lambda log_p: divergence(kind, log_p, target.to(log_p.dtype)),
        lambda dtype: Gap(given(target.to(dtype)), kind),
    )


NAMES = [*belief_cases(4, 0.5)]


def compare(
    plain: Callable[[Tensor], Tensor], answer: Answer, dense: Tensor, formula: Formula, inputs: list[Tensor]
) -> tuple[tuple[Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]:
    """(nats, gradients) as autograd has them and as they are fused."""
    nats = plain(dense)
    expected = torch.autograd.grad(nats.sum() / 3, inputs)
    loss = fused_loss(answer, formula)
    found = torch.autograd.grad(loss.total / 3, inputs)
    assert torch.allclose(loss.total.detach(), loss.nats.sum())
    return (nats.detach(), list(expected)), (loss.nats, list(found))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm().clamp_min(1e-300))


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of five rows, worked on two at a time: most of what can go wrong is at their borders."""
    monkeypatch.setattr(answers, "rows_of_a_product", lambda *sizes: 5)
    for module in (answers, heads):
        monkeypatch.setattr(module, "rows_at_once", lambda *sizes: 2)


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("num_states", [2, 11, 300])
def test_fused_is_plain(name: str, alpha: float, num_states: int) -> None:
    plain, make = belief_cases(num_states, alpha)[name]
    vectors, head = inputs(num_states, torch.float64)
    belief = Belief(vectors, head, num_states, num_states)
    everything = [vectors, head.weight, head.bias]
    (nats, expected), (got, found) = compare(plain, belief, belief.log_probs(), make(torch.float64), everything)
    assert torch.allclose(got, nats, rtol=1e-9, atol=1e-9)
    # at the ends the plain form itself loses digits in float64: the gradient is what is left of larger terms
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
        assert relative(one, other) < 1e-5


def test_tokens_of_very_different_levels_are_read_together() -> None:
    """In float32, each as precise as if it were alone."""
    num_states = 27
    x, z = tokens(num_states)
    level = torch.tensor([[*ALPHAS[:-1], 1 - 1e-12]], dtype=torch.float64)
    slope = -torch.ones_like(level)
    vectors, head = inputs(num_states, torch.float64)
    nats = functional.uniform_bound(Belief(vectors, head, 27, 27).log_probs(), x, z, level, slope)
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
            return functional.score_entropy_uniform(ratios, x, z, level, slope)
        return functional.score_entropy_absorbing(ratios, x, z == num_states - 1, level, slope)

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
    loss = fused_loss(belief, Gap(target, kind))
    torch.autograd.backward(loss.total)
    assert other.grad is None
    assert taught.weight.grad is None
    assert torch.allclose(loss.nats, plain.detach(), atol=1e-12)
    assert vectors.grad is not None
    assert head.weight.grad is not None
    assert relative(vectors.grad, expected[0]) < 1e-10
    assert relative(head.weight.grad, expected[1]) < 1e-10


@pytest.mark.parametrize("kind", ["kl-backward", "kl-forward", "mse", "tvd"])
def test_what_both_beliefs_exclude_has_no_gap_and_no_gradient(kind: Divergence) -> None:
    """Whether there is a column for it or not."""
    torch.manual_seed(0)
    few, target = torch.randn(2, BATCH, LENGTH, 5, dtype=torch.float64).log_softmax(-1)
    few.requires_grad_()
    nats = divergence(kind, torch.log_softmax(few, -1), target)
    (expected,) = torch.autograd.grad(nats.sum(), few)
    wide, taught = (nn.functional.pad(each.detach(), (0, 1), value=-torch.inf) for each in (few, target))
    for student in (few, wide.requires_grad_()):
        for teacher in (target, taught):
            loss = fused_loss(given(student), Gap(given(teacher), kind))
            assert torch.allclose(loss.nats, nats.detach(), atol=1e-12)
            (found,) = torch.autograd.grad(loss.total, student)
            assert torch.allclose(found[..., :5], expected, atol=1e-12)
            assert not found[..., 5:].any()


@pytest.mark.parametrize("name", ["surprisal", "bound"])
@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_what_is_common_to_a_row_of_logits_changes_nothing(name: str, shift: float) -> None:
    plain, make = belief_cases(11, 0.5)[name]
    vectors, head = inputs(11, torch.float64)
    logits = head(vectors).detach().requires_grad_()
    dense = torch.log_softmax(logits, -1)
    answer = given(logits + shift)
    (nats, (expected,)), (got, (found,)) = compare(plain, answer, dense, make(torch.float64), [logits])
    assert torch.allclose(got, nats, atol=1e-9)
    assert torch.allclose(found, expected, atol=1e-9)


@pytest.mark.usefixtures("few_rows")
def test_a_bent_or_certain_belief_is_read_as_it_has_become() -> None:
    """Of the model that is measured, and of the one that teaches; where it was not bent, nothing is written out."""
    model = network(Duo())
    noise = Noise.of(0, 3, torch.arange(2))
    x, alpha = noise.integers("x", 13, 6), torch.full((2,), 0.5, dtype=torch.float64)
    known = torch.tensor([True, False, False, True, False, False])
    weight = torch.ones(2, 1, dtype=torch.float64)
    for bent in (Temperature(model, 0.5), Clamped(model, x[0], known), TopP(model, 0.9)):
        belief = bent.belief(x, alpha)
        plain = belief.log_probs().detach()
        found = fused_loss(belief, Surprisal(x[:1].expand(2, -1), weight)).nats
        expected = -plain.gather(-1, x[:1].expand(2, -1)[..., None])[..., 0]
        assert torch.allclose(found, expected, atol=1e-12)
        if not isinstance(bent, TopP):  # a divergence from it would be infinite
            taught = fused_loss(model.belief(x, alpha), Gap(belief, "tvd")).nats
            assert torch.allclose(taught, divergence("tvd", model.log_probs(x, alpha), plain).detach(), atol=1e-12)
    clamped = Clamped(model, x[0], known).belief(x, alpha)
    assert clamped.plain(~known.expand(2, -1)) is clamped
    assert clamped.plain(None) is not clamped


# --- who is read


def network(method: Any, num_tokens: int = 13, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    model = method.network(replace(SIZES["nano"], dropout=0.2), Vocabulary(num_tokens)).to(dtype)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.2)
    return model


METHODS = [Duo(), UDLM(), MDLM(), SEDD(), SEDD("uniform"), D3PM(), D3PM("uniform"), AR(), BertMouth(), DiffusionBERT()]


def objectives(method: Any) -> list[Any]:
    found = [phase.objective for phase in method.phases(13, 10)]
    for kind in (DCD(rounds=1, round_steps=1, delta=0.1), SDTT(rounds=1, round_steps=1, delta=0.1)):
        if (isinstance(kind, DCD) and type(method) is Duo) or (isinstance(kind, SDTT) and type(method) is MDLM):
            found += [phase.objective for phase in kind.phases(method, 13, network(method))]
    return found


class Written:
    """A model that can only write its answer out, told as the real one: what the fused loss is compared with."""

    def __init__(self, model: Any):
        self.model = model
        self.information = getattr(model, "information", None)
        name = "log_ratios" if hasattr(model, "ratios") else "log_probs"
        setattr(self, name, getattr(model, name))


class Denoises(Written):
    def log_probs(self, *args: Any) -> Any: ...


class Scores(Written):
    def log_ratios(self, *args: Any) -> Any: ...


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_equal_seeds_give_equal_losses_fused_and_written_out(method: Any, padded: bool) -> None:
    """Every objective of every method: the same noise, the same nats, the same gradients of every parameter."""
    model = network(method)
    noise = Noise.of(0, 3, torch.arange(4))
    x, t = noise.integers("x", 13, 9), noise.uniform("t", 1)[:, 0]
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[1, 6:] = mask[3, 2:] = False
    written = (Scores if hasattr(model, "ratios") else Denoises)(model)
    for objective in objectives(method):
        results = []
        for who in (model, written):
            loss = objective(who, x, t, noise, mask if padded else None, dropout=True)
            learnt = [value for value in model.parameters() if value.requires_grad]
            results.append((loss.nats, torch.autograd.grad(loss.total, learnt, materialize_grads=True)))
        (nats, found), (expected, plain) = results
        assert torch.allclose(nats, expected, rtol=1e-9, atol=1e-9)
        assert not padded or bool((nats[~mask] == 0).all())
        for one, other in zip(found, plain):
            assert torch.allclose(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("padded", [False, True])
def test_only_positions_that_pay_are_projected(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    projected: list[Tensor] = []
    plain = Answer.project

    def counting(self: Answer, rows: Any) -> Tensor:
        projected.append(rows)
        return plain(self, rows)

    monkeypatch.setattr(Answer, "project", counting)
    noise = Noise.of(0, 3, torch.arange(4))
    x, t = noise.integers("x", 13, 9), noise.uniform("t", 1)[:, 0]
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[1, 6:] = False
    for method in (MDLM(), Duo(), AR()):
        projected.clear()
        objective = method.phases(13, 10)[-1].objective
        loss = objective(network(method), x, t, noise, mask if padded else None)
        pays = mask if padded else torch.ones_like(mask)
        if isinstance(method, MDLM):
            pays = pays & (Absorbing(14).corrupt(x, method.times.alpha(t), noise) == 13)
        assert torch.equal(torch.cat(projected), pays.flatten().nonzero()[:, 0])
        assert torch.equal(loss.nats != 0, pays)


def test_nothing_to_pay_is_a_loss_of_zero_with_gradients_of_zero() -> None:
    model = network(MDLM())
    x = torch.zeros(2, 5, dtype=torch.int64)
    belief = model.belief(x, torch.ones(2, dtype=torch.float64))
    loss = fused_loss(belief, Surprisal(x, torch.ones(2, 1)), torch.zeros_like(x, dtype=torch.bool))
    torch.autograd.backward(loss.total)
    assert float(loss.total.detach()) == 0
    assert float(model.backbone.head.weight.grad.abs().max()) == 0


def test_chunks_are_of_one_size_and_fit_the_device() -> None:
    rows = torch.arange(1024)
    for most, sizes in ((2000, [1024]), (1024, [1024]), (1023, [512, 512]), (210, [205] * 4 + [204]), (1, [1] * 1024)):
        parts = answers.evenly(rows, most)
        assert [len(part) for part in parts] == sizes
        assert torch.equal(torch.cat(parts), rows)
    assert answers.evenly(rows[:0], 5) == ()
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert answers.rows_of_a_product(30_522, cpu, learning=True) == 256
    assert answers.rows_of_a_product(30_522, cpu) == 420
    assert answers.rows_of_a_product(27, cpu) == 4096
    # a gigabyte of float32 in one product, a quarter of it in one pass
    assert answers.rows_of_a_product(50_257, gpu) * 50_257 * 4 == pytest.approx(2**30, rel=0.01)
    assert functional.rows_at_once(50_257, gpu) * 50_257 * 4 == pytest.approx(2**28, rel=0.01)
    assert functional.rows_at_once(10**9, cpu) == 1


# --- precision


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16 weights", "autocast"])
def test_the_softmax_is_float32_whatever_the_network(autocast: bool) -> None:
    """The loss is the float32 formula of logits that are as coarse as the network's, to float32's rounding."""
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
    plain = functional.uniform_bound(
        torch.log_softmax(logits.float(), -1), x, z, alpha[:, None], -torch.ones(4, 1, dtype=torch.float64)
    )
    assert relative(loss.nats, plain.detach()) < 1e-5
    learnt = [value for value in model.parameters() if value.requires_grad]
    expected = torch.autograd.grad(plain.sum(), learnt, retain_graph=True)
    found = torch.autograd.grad(loss.total, learnt)
    assert [each.dtype for each in found] == [each.dtype for each in learnt]
    for one, other in zip(found, expected):
        assert relative(one, other.double()) < 0.02  # products in bfloat16 on both sides


@pytest.mark.usefixtures("few_rows")
def test_gradients_of_a_bfloat16_head_are_summed_in_float32() -> None:
    """Over many chunks, of a sum that bfloat16 would soon stop adding to."""
    torch.manual_seed(0)
    count, num_states = 2000, 11
    _, head = inputs(num_states, torch.bfloat16)
    vectors = (1 + torch.randn(1, count, WIDTH)).bfloat16().requires_grad_()
    x = torch.zeros(1, count, dtype=torch.int64)
    loss = fused_loss(Belief(vectors, head, num_states, num_states), Surprisal(x, torch.ones(1, 1)))
    found = torch.autograd.grad(loss.total, [head.weight, head.bias])
    logits = head(vectors).double()
    slopes = (torch.softmax(logits, -1) - nn.functional.one_hot(x, num_states))[0].detach()
    for one, other in zip(found, (slopes.T @ vectors[0].detach().double(), slopes.sum(0))):
        assert relative(one, other) < 0.003


@pytest.mark.parametrize("largest", [1e-6, 3.0, 1e4, 1e12, 1e30])
def test_sums_of_logarithms_by_products(largest: float) -> None:
    """In float32 and for any number of states, also where products would be too large."""
    torch.manual_seed(0)
    for num_states in (1, 2, 3, 6, 7, 1001):
        share = torch.rand(20, num_states, dtype=torch.float64)
        u = largest * share / share.sum(-1, keepdim=True)
        expected = torch.log1p(u.float().double()).sum(-1)
        assert torch.allclose(sum_log1p(u.float(), largest).double(), expected, rtol=2e-6)
        assert torch.allclose(sum_log1p(u, largest), torch.log1p(u).sum(-1), rtol=1e-12)


# --- the autograd function


def test_a_loss_is_differentiated_once() -> None:
    vectors, head = inputs(6, torch.float64)
    x, _ = tokens(6)
    loss = fused_loss(Belief(vectors, head, 6, 6), Surprisal(x, torch.ones(BATCH, 1)))
    torch.autograd.backward(loss.total, retain_graph=True)
    with pytest.raises(RuntimeError, match="compute it again"):
        torch.autograd.backward(loss.total)


def test_a_frozen_head_gets_no_gradient_and_frozen_vectors_need_none() -> None:
    vectors, head = inputs(6, torch.float64)
    x, _ = tokens(6)
    formula = Surprisal(x, torch.ones(BATCH, 1, dtype=torch.float64))
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


def test_logits_of_a_batch_never_exist() -> None:
    """Of all tensors that a loss and its gradient make, none has as many numbers as the logits, or half of them."""
    sizes: list[int] = []

    class Sizes(Mode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            sizes.extend(leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor))
            return made

    model = MeanDenoiser(SIZES["nano"].build(20_000))
    nn.init.normal_(model.backbone.head.weight)
    noise = Noise.of(0, 0, torch.arange(8))
    x = noise.integers("x", 20_000, 256)
    objective = Duo().phases(20_000, 10)[-1].objective
    with Sizes():
        torch.autograd.backward(objective(model, x, noise.uniform("t", 1)[:, 0], noise).total)
    assert max(sizes) < 8 * 256 * 20_000 / 4


# --- beliefs as they are read


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("kind", ["mean", "subs"])
def test_rows_put_and_at_are_the_rows_of_the_belief_written_out(kind: str) -> None:
    method: Any = Duo() if kind == "mean" else MDLM()
    model = network(method)
    noise = Noise.of(0, 0, torch.arange(3))
    one, two = (noise.integers(tag, 14 if kind == "subs" else 13, 6) for tag in ("one", "two"))
    alpha = torch.full((3,), 0.5, dtype=torch.float64)
    assert isinstance(model, (MeanDenoiser, SubsDenoiser))
    first, second = model.belief(one, alpha), model.belief(two, alpha)
    dense, other = first.log_probs().flatten(0, 1).detach(), second.log_probs().flatten(0, 1).detach()
    rows = torch.tensor([0, 3, 4, 9, 10, 17])
    assert torch.allclose(first.rows(rows), dense[rows, : first.num_named], atol=1e-12)
    read = dict(zip(rows.tolist(), torch.cat([log_p.clone() for _, log_p in first.each(rows)])))
    assert all(torch.allclose(read[row], dense[row, : first.num_named], atol=1e-12) for row in read)
    mixed = first.put(rows, second.at(rows)).log_probs().flatten(0, 1)
    expected = dense.index_copy(0, rows, other[rows])
    assert torch.allclose(mixed, expected, atol=1e-12)
    assert torch.equal(first.likeliest(), first.log_probs().argmax(-1))
    with torch.no_grad():
        assert torch.allclose(first.log_probs().flatten(0, 1), dense, atol=1e-12)


@pytest.mark.usefixtures("few_rows")
def test_a_bend_is_told_its_rows_and_may_change_what_is_likeliest() -> None:
    """Read in chunks, and written out with gradients and without."""
    vectors, head = inputs(9, torch.float64)

    def bend(log_p: Tensor, rows: Tensor) -> Tensor:
        return torch.log_softmax(-log_p * (1 + rows[:, None]), -1)

    belief = Belief(vectors, head, 9, 9, bends=(bend,))
    plain = torch.log_softmax(head(vectors), -1).flatten(0, 1)
    expected = bend(plain, torch.arange(len(plain))).view(BATCH, LENGTH, 9)
    assert torch.allclose(belief.log_probs(), expected, atol=1e-12)
    assert torch.equal(belief.likeliest(), expected.argmax(-1))
    with torch.no_grad():
        assert torch.allclose(belief.log_probs(), expected, atol=1e-12)
