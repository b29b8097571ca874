"""For every process with closed forms: closed form = general form, in value and in gradient, and both = autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.unigram import Unigram
from torch import Tensor, nn

from duality.diffusion.processes import Absorbing, GaussianUniform, Uniform
from duality.fused.lazy import Belief, Ratios
from duality.fused.loss import fused_loss
from duality.fused.process_formulas import CLOSED_FORMS, _GeneralFormulas, formulas_of
from duality.noise import Noise
from duality.protocols import Process

BATCH, LENGTH, WIDTH, TOKENS = 5, 6, 4, 7
PROCESSES: list[Process] = [Uniform(TOKENS), GaussianUniform(TOKENS), Absorbing.over(TOKENS)]


def inputs(process: Process) -> tuple[nn.Linear, Tensor, Tensor, Tensor, Tensor]:
    """A head, vectors, clean and noisy tokens, levels (B, 1)."""
    torch.manual_seed(3)
    head = nn.Linear(WIDTH, process.vocab_size).double()
    vectors = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    noise = Noise.of(1, 0, torch.arange(BATCH))
    x, alpha = noise.integers("x", TOKENS, LENGTH), torch.tensor([0.02, 0.3, 0.5, 0.9, 0.999], dtype=torch.float64)
    return head, vectors, x, process.corrupt(x, alpha, noise), alpha[:, None]


def lazy_of(process: Process, loss: str, head: nn.Linear, vectors: Tensor, z: Tensor) -> Belief | Ratios:
    num_outputs = process.vocab_size if process.mask_id is None else process.mask_id
    if loss == "score_entropy":
        return Ratios(vectors, head, process.vocab_size, process.vocab_size, z)
    return Belief(vectors, head, num_outputs, process.vocab_size)


def value_and_gradients(process: Process, formulas: Any, loss: str) -> tuple[Tensor, ...]:
    head, vectors, x, z, alpha = inputs(process)
    second = (alpha + 1) / 2 if loss == "divergence" else torch.full_like(alpha, -0.9)
    scale = (3.0,) if loss == "divergence" else ()
    formula = getattr(formulas, loss)(x, z, alpha, second, *scale)
    found = fused_loss(lazy_of(process, loss, head, vectors, z), formula, formulas.loss_positions(z))
    gradients = torch.autograd.grad(found.total, (vectors, head.weight, head.bias))
    return (found.nats, *gradients)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
@pytest.mark.parametrize("loss", ["bound", "divergence", "score_entropy"])
def test_the_closed_form_is_the_general_form(process: Process, loss: str) -> None:
    closed = value_and_gradients(process, formulas_of(process), loss)
    general = value_and_gradients(process, _GeneralFormulas(process), loss)
    assert float(closed[0].sum()) > 0
    for mine, theirs in zip(closed, general):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-10)


def test_every_closed_form_is_tested_here_and_others_are_general() -> None:
    assert {type(process) for process in PROCESSES} == set(CLOSED_FORMS)
    assert isinstance(formulas_of(Unigram(5)), _GeneralFormulas)


@pytest.mark.parametrize("loss", ["bound", "divergence", "score_entropy"])
def test_general_gradients_are_numerical_ones(loss: str) -> None:
    process = Unigram(TOKENS)
    head, vectors, x, z, alpha = inputs(process)
    second = (alpha + 1) / 2 if loss == "divergence" else torch.full_like(alpha, -0.9)
    formulas = formulas_of(process)
    formula = getattr(formulas, loss)(x, z, alpha, second, *((1.0,) if loss == "divergence" else ()))

    def total(moved: Tensor) -> Tensor:
        return fused_loss(lazy_of(process, loss, head, moved, z), formula, formulas.loss_positions(z)).total

    (gradient,) = torch.autograd.grad(total(vectors), vectors)
    direction = torch.randn(vectors.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        numeric = (total(vectors + 1e-6 * direction) - total(vectors - 1e-6 * direction)) / 2e-6
    assert float((gradient * direction).sum()) == pytest.approx(float(numeric), rel=1e-6)


def test_only_positions_that_noise_can_reach_are_read() -> None:
    """Outside the prior's support a token is certain: it has no loss, and its row need not be projected."""
    z = torch.tensor([[0, TOKENS, 3, TOKENS]])
    expected = [[False, True, False, True]]
    absorbing = Absorbing.over(TOKENS)
    assert formulas_of(absorbing).loss_positions(z).tolist() == expected  # type: ignore[union-attr]
    assert _GeneralFormulas(absorbing).loss_positions(z).tolist() == expected
    assert _GeneralFormulas(Unigram(TOKENS + 1)).loss_positions(z).all()
