"""The row kernels in triton's interpreter: nats and gradients are those of the formulas of PyTorch in float64.

Elementwise float32 with sums in float64 gives nats to 1e-8 where nothing cancels. The gradient is compared row by row;
divergences of nearly equal or nearly certain beliefs cancel in the float32 of a logit itself, and are held to no more
than what PyTorch reaches in float32 there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.plain_forms import divergence
from torch import Tensor, nn

from duality.diffusion import Divergence
from duality.fused.formulas import (
    AbsorbingScoreEntropy,
    BeliefDivergence,
    CrossEntropy,
    Formula,
    PosteriorDivergence,
    UniformBound,
    UniformDivergence,
    UniformScoreEntropy,
)
from duality.fused.lazy import Belief, LazyLogits, Ratios, _belief_from
from duality.fused.loss import _differentiate, fused_loss
from duality.fused.row_readers import _READERS

pytest.importorskip("triton", reason="triton is not installed: make test-gpu")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton interprets kernels in a process of its own: make test-gpu", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy's, of branches not taken

ROWS = 12
ALPHAS = [1e-7, 0.03, 0.97, 1 - 1e-4, 1 - 1e-7]
KINDS: tuple[Divergence, ...] = ("kl-backward", "kl-forward", "mse", "tvd")


@pytest.fixture(autouse=True)
def _kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALITY_KERNELS", "on")


def tokens(num_states: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Clean tokens, and noisy ones of which half are clean."""
    generator = torch.Generator().manual_seed(0)
    x, other = (torch.randint(num_states, (rows,), generator=generator) for _ in range(2))
    return x, torch.where(torch.rand(rows, generator=generator) < 0.5, x, other)


def draw_logits(num_states: int, seed: int, rows: int = ROWS, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, num_states, generator=torch.Generator().manual_seed(seed))


def make_bound(name: str, num_states: int, alpha: float, rows: int = ROWS) -> Formula:
    x, z = tokens(num_states, rows)
    level = torch.full((rows,), alpha, dtype=torch.float64)
    slope = -torch.linspace(0.5, 1.5, rows, dtype=torch.float64)
    made: dict[str, Callable[[], Formula]] = {
        "surprisal": lambda: CrossEntropy(x, -slope),
        "bound": lambda: UniformBound(x, z, level, slope, num_states),
        "T-step": lambda: UniformDivergence(x, z, level, level + (1 - level) * 0.3, num_states, 7),
        "uniform score": lambda: UniformScoreEntropy(x, z, level, slope, num_states),
        "absorbing score": lambda: AbsorbingScoreEntropy(x % (num_states - 1), level, slope),
    }
    return made[name]()


BOUNDS = ["surprisal", "bound", "T-step", "uniform score", "absorbing score"]


def make_divergence(kind: Divergence, num_states: int, posterior: bool) -> BeliefDivergence:
    x, z = tokens(num_states)
    target = draw_logits(num_states, 1)
    if not posterior:
        return BeliefDivergence(target, kind)
    evidence = torch.linspace(0, 4, ROWS, dtype=torch.float64)
    return PosteriorDivergence(target, kind, z, evidence, x, evidence + 0.7)


def read_plainly(formula: Formula, logits: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Nats and gradient of the formula by PyTorch."""
    if isinstance(formula, BeliefDivergence):
        assert isinstance(formula.target, Tensor)
        formula = replace(formula, target=formula.target.to(dtype, copy=True))
    logits = logits.to(dtype, copy=True)
    numbers, pull = formula.read(logits)
    nats, slopes = _differentiate(formula, [number.double() for number in numbers])
    pull(*(slope[:, None].to(dtype) for slope in slopes))
    return nats, logits


def read_by_kernels(formula: Formula, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The same by kernels, in rows that are longer than the logits."""
    width = logits.shape[1]
    logits = nn.functional.pad(logits, (0, 5), value=77.0)
    numbers, pull = _READERS[type(formula)](formula, logits[:, :width], True)
    nats, slopes = _differentiate(formula, numbers)
    sums = pull(*slopes)
    found = logits[:, :width].double()
    assert bool((logits[:, width:] == 77.0).all())
    assert torch.allclose(sums.sum(0).double(), found.sum(0), rtol=1e-2, atol=1e-2 * float(found.abs().max()))
    return nats, found


def worst_row(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("num_states", [27, 601])
def test_bounds_are_those_of_pytorch(name: str, alpha: float, num_states: int) -> None:
    formula, logits = make_bound(name, num_states, alpha), draw_logits(num_states, 0)
    if isinstance(formula, UniformScoreEntropy):
        logits.scatter_(1, formula.z[:, None], 0.0)
    nats, gradient = read_plainly(formula, logits)
    found, slopes = read_by_kernels(formula, logits)
    assert float((found - nats).norm() / nats.norm()) < 1e-8
    assert float((slopes - gradient).norm() / gradient.norm()) < 1e-7
    single, rounded = read_plainly(formula, logits, torch.float32)
    assert worst_row(found[:, None], nats[:, None]) < max(5e-7, worst_row(single[:, None], nats[:, None]) / 5)
    assert worst_row(slopes, gradient) < max(1e-6, worst_row(rounded.double(), gradient))


@pytest.mark.parametrize("name", ["surprisal", "bound"])
def test_at_the_size_of_a_vocabulary(name: str) -> None:
    for alpha in (1e-7, 0.3, 1 - 1e-7):
        formula, logits = make_bound(name, 50_257, alpha, 3), draw_logits(50_257, 0, 3)
        nats, gradient = read_plainly(formula, logits)
        found, slopes = read_by_kernels(formula, logits)
        assert worst_row(found[:, None], nats[:, None]) < 1e-8
        assert worst_row(slopes, gradient) < 1e-6


@pytest.mark.parametrize("name", BOUNDS)
def test_logits_of_bfloat16(name: str) -> None:
    """Read exactly; the gradient is the one of float32, rounded."""
    formula, logits = make_bound(name, 301, 0.4), draw_logits(301, 0).bfloat16()
    if isinstance(formula, UniformScoreEntropy):
        logits.scatter_(1, formula.z[:, None], 0.0)
    nats, gradient = read_plainly(formula, logits)
    found, slopes = read_by_kernels(formula, logits)
    assert float((found - nats).norm() / nats.norm()) < 1e-8
    # the interpreter cuts the digits off that bfloat16 has not; a GPU rounds
    assert float(((slopes - gradient).abs() / gradient.abs().clamp_min(1e-30)).max()) < 2**-7 * 1.01


def test_a_row_whose_x_is_nearly_certain() -> None:
    """1 - p_x is small, and as precise as if it were not."""
    for name in ("surprisal", "bound", "T-step"):
        for alpha in (0.03, 0.97):
            formula, logits = make_bound(name, 99, alpha), draw_logits(99, 0)
            assert isinstance(formula, (CrossEntropy, UniformBound, UniformDivergence))
            logits.scatter_(1, formula.x[:, None], 10.0)
            nats, gradient = read_plainly(formula, logits)
            found, slopes = read_by_kernels(formula, logits)
            assert worst_row(found[:, None], nats[:, None]) < 1e-5
            assert worst_row(slopes, gradient) < 1e-5, (name, alpha)


@pytest.mark.parametrize("name", ["surprisal", "bound", "T-step"])
def test_states_that_are_excluded(name: str) -> None:
    formula, logits = make_bound(name, 99, 0.4), draw_logits(99, 0)
    excluded = torch.rand(logits.shape, generator=torch.Generator().manual_seed(5)) < 0.3
    for named in ("x", "z"):
        excluded.scatter_(1, getattr(formula, named, formula.x)[:, None], False)  # type: ignore[attr-defined]
    logits.masked_fill_(excluded, -torch.inf)
    nats, gradient = read_plainly(formula, logits)
    found, slopes = read_by_kernels(formula, logits)
    assert worst_row(found[:, None], nats[:, None]) < 1e-7
    assert worst_row(slopes, gradient) < 1e-6
    assert float(slopes[excluded].abs().max()) == 0


@pytest.mark.parametrize("posterior", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_divergences_are_those_of_pytorch(kind: Divergence, posterior: bool, dtype: torch.dtype) -> None:
    formula, logits = make_divergence(kind, 301, posterior), draw_logits(301, 0).to(dtype)
    assert isinstance(formula.target, Tensor)
    formula = replace(formula, target=formula.target.to(dtype))
    both = draw_logits(301, 7) > 3  # states that student and teacher exclude
    logits.masked_fill_(both, -torch.inf)
    formula.target.masked_fill_(both, -torch.inf)  # type: ignore[union-attr]
    nats, gradient = read_plainly(formula, logits)
    single, rounded = read_plainly(formula, logits, torch.float32)
    found, slopes = read_by_kernels(formula, logits)
    assert worst_row(found[:, None], nats[:, None]) < max(1e-7, worst_row(single[:, None], nats[:, None]))
    limit = 2**-7 if dtype == torch.bfloat16 else max(1e-6, worst_row(rounded.double(), gradient))
    assert worst_row(slopes, gradient) < limit


def make_lazy(dtype: torch.dtype = torch.float32, outputs: int = 43, states: int = 45) -> LazyLogits:
    torch.manual_seed(0)
    head = nn.Linear(8, states).to(dtype)
    nn.init.normal_(head.weight, std=0.5)
    return Belief(torch.randn(2, 9, 8).to(dtype).requires_grad_(), head, outputs, outputs)


def compare_losses(lazy: LazyLogits, formula: Formula, monkeypatch: pytest.MonkeyPatch, tolerance: float) -> None:
    """Loss and gradients with kernels, and without."""
    assert lazy.head is not None
    found = []
    for setting in ("on", "off"):
        monkeypatch.setenv("DUALITY_KERNELS", setting)
        loss = fused_loss(lazy, formula, torch.arange(18).view(2, 9) % 4 > 0)
        gradients = torch.autograd.grad(loss.total, [lazy.vectors, lazy.head.weight, lazy.head.bias])
        found.append((loss.nats, *gradients))
    for one, other in zip(*found):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert float((one - other).norm() / other.norm()) < tolerance


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["surprisal", "bound", "divergence"])
def test_a_loss_with_its_head(name: str, autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of rows, a head that is padded, positions without a loss; products in bfloat16 under autocast."""
    lazy = make_lazy()
    formula: Formula
    if name == "divergence":
        torch.manual_seed(1)
        target = Belief(torch.randn(2, 9, 8), make_lazy().head, 43, 43)
        formula = BeliefDivergence(target, "kl-backward")
    else:
        formula = make_bound(name, 43, 0.4, 18)
        formula = formula._each(lambda value: value.view(2, 9), lambda target: target)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        compare_losses(lazy, formula, monkeypatch, 2e-2 if autocast else 2e-6)


@pytest.mark.parametrize("name", ["uniform score", "absorbing score"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_score_with_its_head(name: str, autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy, formula = make_lazy(outputs=45), make_bound(name, 45, 0.4, 18)
    formula = formula._each(lambda value: value.view(2, 9), lambda target: target)
    z = formula.z if isinstance(formula, UniformScoreEntropy) else torch.full((2, 9), 44)
    offset = None if name == "uniform score" else torch.tensor([0.3, -0.2])
    ratios = Ratios(lazy.vectors, lazy.head, 45, 45, z, offset)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        compare_losses(ratios, formula, monkeypatch, 2e-2 if autocast else 2e-6)


def test_a_belief_that_is_materialised() -> None:
    """No head: the kernels read the numbers themselves."""
    leaf = draw_logits(31, 0).view(2, -1, 31).requires_grad_()
    target = torch.log_softmax(draw_logits(31, 1).view(2, -1, 31), -1)
    loss = fused_loss(_belief_from(torch.log_softmax(leaf, -1)), BeliefDivergence(_belief_from(target), "kl-backward"))
    expected = divergence("kl-backward", torch.log_softmax(leaf, -1), target)
    assert torch.allclose(loss.nats, expected.detach().double(), rtol=1e-5)
    found, plain = (torch.autograd.grad(each.sum(), leaf)[0] for each in (loss.total, expected))
    assert torch.allclose(found, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seen", [torch.float64, torch.float32])
def test_networks_of_float64_and_formulas_without_a_kernel_are_read_by_pytorch(seen: torch.dtype) -> None:
    from duality.fused.row_readers import find_reader

    lazy, formula = make_lazy(seen), make_bound("bound", 43, 0.4, 18)
    assert (find_reader(lazy, formula) is None) == (seen == torch.float64)
    assert find_reader(lazy, Formula()) is None
