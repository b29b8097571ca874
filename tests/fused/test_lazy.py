"""Lazy logits: which rows are projected, what they contain, and that fused losses equal materialised ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.plain_forms import divergence
from support.small_heads import BATCH, LENGTH, inputs, network
from torch import Tensor

from duality.denoisers.clamp import Clamped
from duality.denoisers.filters import Temperature, TopP
from duality.denoisers.readouts import MeanDenoiser, SubsDenoiser
from duality.diffusion import draws
from duality.diffusion.processes import Absorbing
from duality.fused import lazy
from duality.fused.formulas import BeliefDivergence, CrossEntropy
from duality.fused.lazy import Belief, LazyLogits, Ratios
from duality.fused.loss import fused_loss
from duality.methods.ar import AR
from duality.methods.bert_mouth import BertMouth
from duality.methods.d3pm import D3PM
from duality.methods.diffusion_bert import DiffusionBERT
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.sedd import SEDD
from duality.methods.udlm import UDLM
from duality.noise import Noise
from duality.protocols import LazyBelief, LazyRatios
from duality.training.distillation import DCD, SDTT


@pytest.mark.usefixtures("few_rows")
def test_a_transformed_or_certain_belief_is_materialised() -> None:
    """For a student and for a teacher; where no row has a transform, the belief stays lazy."""
    model = network(Duo())
    noise = Noise.of(0, 3, torch.arange(2))
    x, alpha = noise.integers("x", 13, 6), torch.full((2,), 0.5, dtype=torch.float64)
    known = torch.tensor([True, False, False, True, False, False])
    weight = torch.ones(2, 1, dtype=torch.float64)
    for transformed in (Temperature(model, 0.5), Clamped(model, x[0], known), TopP(model, 0.9)):
        belief = transformed.belief(x, alpha)
        plain = belief.log_probs().detach()
        found = fused_loss(belief, CrossEntropy(x[:1].expand(2, -1), weight)).nats
        expected = -plain.gather(-1, x[:1].expand(2, -1)[..., None])[..., 0]
        assert torch.allclose(found, expected, atol=1e-12)
        if not isinstance(transformed, TopP):  # a divergence from it would be infinite
            taught = fused_loss(model.belief(x, alpha), BeliefDivergence(belief, "tvd")).nats
            assert torch.allclose(taught, divergence("tvd", model.log_probs(x, alpha), plain).detach(), atol=1e-12)
    clamped = Clamped(model, x[0], known).belief(x, alpha)
    counts = [clamped.count_certain(where) for where in (~known.expand(2, -1), None)]
    assert [None if count is None else count.item() for count in counts] == [0, 4]
    assert clamped.as_logits(False) is clamped
    assert clamped.as_logits(True) is not clamped
    assert model.belief(x, alpha).count_certain(None) is None


METHODS = [Duo(), UDLM(), MDLM(), SEDD(), SEDD("uniform"), D3PM(), D3PM("uniform"), AR(), BertMouth(), DiffusionBERT()]


def objectives(method: Any) -> list[Any]:
    found = [phase.objective for phase in method.phases(13, 10)]
    one: dict[str, Any] = {"rounds": 1, "round_steps": 1, "delta": 0.1}
    for kind in (DCD(**one, compare="output"), DCD(**one, compare="posterior"), SDTT(**one)):
        if (isinstance(kind, DCD) and type(method) is Duo) or (isinstance(kind, SDTT) and type(method) is MDLM):
            found += [phase.objective for phase in kind.phases(method, 13, network(method))]
    return found


class Materialised:
    """The same model with a materialised belief or materialised ratios only, to compare the fused loss with."""

    def __init__(self, model: Any):
        self.model = model
        self.information = getattr(model, "information", None)
        name = "log_ratios" if hasattr(model, "ratios") else "log_probs"
        setattr(self, name, getattr(model, name))


class MaterialisedDenoiser(Materialised):
    def log_probs(self, *args: Any) -> Any: ...


class MaterialisedScore(Materialised):
    def log_ratios(self, *args: Any) -> Any: ...


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_equal_seeds_give_equal_losses_fused_and_materialised(method: Any, padded: bool) -> None:
    """Every objective of every method: the same noise, the same nats, the same gradients of every parameter."""
    model = network(method)
    noise = Noise.of(0, 3, torch.arange(4))
    x, t = noise.integers("x", 13, 9), noise.uniform("t", 1)[:, 0]
    valid = torch.ones_like(x, dtype=torch.bool)
    valid[1, 6:] = valid[3, 2:] = False
    materialised = (MaterialisedScore if hasattr(model, "ratios") else MaterialisedDenoiser)(model)
    for objective in objectives(method):
        results = []
        for denoiser in (model, materialised):
            loss = objective(denoiser, x, t, noise, valid if padded else None, dropout=True)
            trained = [value for value in model.parameters() if value.requires_grad]
            results.append((loss.nats, torch.autograd.grad(loss.total, trained, materialize_grads=True)))
        (nats, found), (expected, plain) = results
        assert torch.allclose(nats, expected, rtol=1e-9, atol=1e-9)
        assert not padded or bool((nats[~valid] == 0).all())
        for one, other in zip(found, plain):
            assert torch.allclose(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("padded", [False, True])
def test_only_loss_positions_are_projected(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    projected: list[Tensor] = []
    plain = LazyLogits.project

    def counting(self: LazyLogits, rows: Any) -> Tensor:
        projected.append(rows)
        return plain(self, rows)

    monkeypatch.setattr(LazyLogits, "project", counting)
    noise = Noise.of(0, 3, torch.arange(4))
    x, t = noise.integers("x", 13, 9), noise.uniform("t", 1)[:, 0]
    valid = torch.ones_like(x, dtype=torch.bool)
    valid[1, 6:] = False
    for method in (MDLM(), Duo(), AR()):
        projected.clear()
        objective = method.phases(13, 10)[-1].objective
        loss = objective(network(method), x, t, noise, valid if padded else None)
        loss_positions = valid if padded else torch.ones_like(valid)
        if isinstance(method, MDLM):
            loss_positions = loss_positions & (Absorbing(14).corrupt(x, method.training_schedule.alpha(t), noise) == 13)
        assert torch.equal(torch.cat(projected), loss_positions.flatten().nonzero()[:, 0])
        assert torch.equal(loss.nats != 0, loss_positions)


def test_without_loss_positions_loss_and_gradients_are_zero() -> None:
    model = network(MDLM())
    x = torch.zeros(2, 5, dtype=torch.int64)
    belief = model.belief(x, torch.ones(2, dtype=torch.float64))
    loss = fused_loss(belief, CrossEntropy(x, torch.ones(2, 1)), torch.zeros_like(x, dtype=torch.bool))
    torch.autograd.backward(loss.total)
    assert float(loss.total.detach()) == 0
    assert float(model.backbone.head.weight.grad.abs().max()) == 0


def test_chunks_are_of_one_size_and_fit_the_device() -> None:
    rows = torch.arange(1024)
    for most, sizes in ((2000, [1024]), (1024, [1024]), (1023, [512, 512]), (210, [205] * 4 + [204]), (1, [1] * 1024)):
        parts = lazy._even_chunks(rows, most)
        assert [len(part) for part in parts] == sizes
        assert torch.equal(torch.cat(parts), rows)
    assert lazy._even_chunks(rows[:0], 5) == ()
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert lazy.chunk_rows(30_522, cpu, learning=True) == 256
    assert lazy.chunk_rows(30_522, cpu) == 420
    assert lazy.chunk_rows(27, cpu) == 4096
    # One product takes a gigabyte of float32, one pass a quarter of it.
    assert lazy.chunk_rows(50_257, gpu) * 50_257 * 4 == pytest.approx(2**30, rel=0.01)
    assert draws.block_rows(50_257, gpu) * 50_257 * 4 == pytest.approx(2**28, rel=0.01)
    assert draws.block_rows(10**9, cpu) == 1


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("kind", ["mean", "subs"])
def test_rows_are_those_of_the_materialised_belief(kind: str) -> None:
    method: Any = Duo() if kind == "mean" else MDLM()
    model = network(method)
    noise = Noise.of(0, 0, torch.arange(3))
    one, two = (noise.integers(tag, 14 if kind == "subs" else 13, 6) for tag in ("one", "two"))
    alpha = torch.full((3,), 0.5, dtype=torch.float64)
    assert isinstance(model, (MeanDenoiser, SubsDenoiser))
    first, second = model.belief(one, alpha), model.belief(two, alpha)
    dense, other = first.log_probs().flatten(0, 1).detach(), second.log_probs().flatten(0, 1).detach()
    rows = torch.tensor([0, 3, 4, 9, 10, 17])
    assert torch.allclose(first.rows(rows), dense[rows, : first.num_outputs], atol=1e-12)
    read = dict(zip(rows.tolist(), torch.cat([log_p.clone() for _, log_p in first.each(rows)])))
    assert all(torch.allclose(read[row], dense[row, : first.num_outputs], atol=1e-12) for row in read)
    chosen = torch.zeros(18, dtype=torch.bool).index_fill(0, rows, True)
    mixed = first.where(chosen.view(3, 6), second).log_probs().flatten(0, 1)
    assert torch.allclose(mixed, torch.where(chosen[:, None], dense, other), atol=1e-12)
    last = torch.arange(12, 18)
    mixed = first.put(last, model.belief(two[2:], alpha[2:])).log_probs().flatten(0, 1)
    assert torch.allclose(mixed, dense.index_copy(0, last, other[last]), atol=1e-12)
    assert torch.equal(first.argmax_states(), first.log_probs().argmax(-1))
    with torch.no_grad():
        assert torch.allclose(first.log_probs().flatten(0, 1), dense, atol=1e-12)


@pytest.mark.usefixtures("few_rows")
def test_a_transform_is_given_its_rows_and_may_change_the_argmax() -> None:
    """Read in chunks, and materialised with gradients and without."""
    vectors, head = inputs(9, torch.float64)

    class Reversed:
        linear = False

        def __call__(self, log_p: Tensor, rows: Tensor) -> Tensor:
            return torch.log_softmax(-log_p * (1 + rows[:, None]), -1)

    transform = Reversed()
    belief = Belief(vectors, head, 9, 9, transforms=(transform,))
    plain = torch.log_softmax(head(vectors), -1).flatten(0, 1)
    expected = transform(plain, torch.arange(len(plain))).view(BATCH, LENGTH, 9)
    assert torch.allclose(belief.log_probs(), expected, atol=1e-12)
    assert torch.equal(belief.argmax_states(), expected.argmax(-1))
    with torch.no_grad():
        assert torch.allclose(belief.log_probs(), expected, atol=1e-12)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_materialised_belief_with_fewer_outputs_than_columns(gradients: bool) -> None:
    """Columns from ``num_outputs`` on are not read, with gradients and without."""
    with torch.set_grad_enabled(gradients):
        log_p = Belief(torch.zeros(1, 2, 6), None, 5, 6).log_probs()
    assert log_p[..., 5].tolist() == [[-torch.inf, -torch.inf]]
    assert torch.allclose(log_p[..., :5].exp(), torch.full((1, 2, 5), 0.2))


def test_beliefs_and_ratios_satisfy_their_protocols() -> None:
    vectors, head = inputs(9, torch.float64)
    assert isinstance(Belief(vectors, head, 9, 9), LazyBelief)
    assert isinstance(Ratios(vectors, head, 9, 9, torch.zeros(vectors.shape[:2], dtype=torch.int64)), LazyRatios)
    assert not isinstance(head, (LazyBelief, LazyRatios))
