"""Dropout, gate and residual in one kernel: PyTorch's numbers with the factors of ``Noise.keep``, and no mask kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from duality.networks import SIZES
from duality.networks.residual import DropoutKeys, add_update, draw_dropout
from duality.noise import Noise

pytest.importorskip("triton", reason="triton is not installed: make test-gpu")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton interprets kernels in a process of its own: make test-gpu", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy's: whole numbers wrap around

BATCH = 3
NOISE = Noise.of(0, 7, torch.arange(BATCH))


@pytest.fixture(autouse=True)
def _kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALITY_KERNELS", "on")


def draw_inputs(length: int, width: int, dtype: torch.dtype, gated: bool) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(BATCH, length, width), (BATCH, length, width), *([(BATCH, 1, width)] if gated else [])]
    # every number is a small multiple of 1/8: no product is rounded, whatever the order
    whole = [torch.randint(-8, 9, shape) / 8 for shape in shapes]
    return [each.to(kind).requires_grad_() for each, kind in zip(whole, (torch.float32, dtype, dtype))]


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(
    ("length", "width", "share"), [(1, 4, 0.9), (5, 12, 0.9), (5, 12, 1e-9), (33, 20, 0.5), (34, 260, 0.9)]
)
def test_the_factors_are_those_of_the_noise(length: int, width: int, share: float, gated: bool) -> None:
    x, update, *gate = draw_inputs(length, width, torch.float32, gated)
    dropped = draw_dropout(NOISE, "mlp", share, x)
    assert isinstance(dropped, DropoutKeys)
    factors = NOISE.keep("mlp", share, length, width)
    with torch.no_grad():
        alone = add_update(torch.zeros_like(x), torch.ones_like(x), None, dropped)
    assert torch.equal(alone, factors)
    one, other = (add_update(x, update, gate[0] if gate else None, each) for each in (dropped, factors))
    assert torch.allclose(one, other, rtol=1e-6, atol=1e-6)
    slope = torch.randint(-8, 9, x.shape) / 8
    found, expected = (torch.autograd.grad(each, [x, update, *gate], slope) for each in (one, other))
    for one, other in zip(found, expected):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_an_update_of_bfloat16() -> None:
    x, update, gate = draw_inputs(9, 16, torch.bfloat16, True)
    dropped = draw_dropout(NOISE, "mlp", 0.5, x)  # the factor is 2: nothing is rounded
    kept = NOISE.keep("mlp", 0.5, 9, 16)
    sums = [add_update(x, update, gate, each) for each in (dropped, kept)]
    assert torch.equal(*sums)
    found, expected = (torch.autograd.grad(each.sum(), [x, update, gate]) for each in sums)
    assert [each.dtype for each in found] == [torch.float32, torch.bfloat16, torch.bfloat16]
    for one, other in zip(found, expected):
        assert torch.allclose(one.float(), other.float(), rtol=2**-6)


def test_no_mask_is_kept() -> None:
    x, update, gate = draw_inputs(33, 20, torch.float32, True)
    kept: list[tuple[int, ...]] = []

    def pack(saved: Tensor) -> Tensor:
        kept.append(tuple(saved.shape))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        add_update(x, update, gate, draw_dropout(NOISE, "mlp", 0.9, x))
    assert sorted(kept) == [(BATCH,), (BATCH, 1, 20), (BATCH, 33, 20)]


def test_widths_and_types_without_a_kernel() -> None:
    for like in (torch.zeros(BATCH, 5, 6), torch.zeros(BATCH, 5, 8, dtype=torch.float64)):
        assert isinstance(draw_dropout(NOISE, "mlp", 0.9, like), Tensor)


def network(causal: bool) -> Any:
    torch.manual_seed(0)
    made = replace(SIZES["nano"](), dropout=0.3).build(13, causal=causal)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return made


def gradients(net: Any, run: Callable[..., Tensor]) -> list[Tensor]:
    z = torch.arange(BATCH * 6).view(BATCH, 6) % 13
    vectors = run(z, torch.ones(BATCH), None, NOISE)
    weights = [weight for name, weight in net.named_parameters() if not name.startswith("head")]
    return [vectors, *torch.autograd.grad(vectors.square().sum(), weights)]


def compile_whole(net: Any) -> Callable[..., Tensor]:
    def hidden(z: Tensor, alpha: Tensor, keys: Tensor) -> Tensor:
        vectors: Tensor = net.hidden(z, alpha, None, Noise(keys))
        return vectors

    whole = torch.compile(hidden, fullgraph=True, backend="aot_eager")
    return lambda z, alpha, _valid, noise: whole(z, alpha, noise.keys)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", ["plain", "recomputed", "blocks are graphs", "one graph"])
def test_a_network_learns_the_same(how: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(causal)
    run: Callable[..., Tensor] = net.hidden
    net.recompute = how == "recomputed"
    if how == "one graph":
        run = compile_whole(net)
    if how == "blocks are graphs":
        for block in net.blocks:
            block.forward = torch.compile(block.forward, fullgraph=True, backend="aot_eager")
    found = gradients(net, run)
    monkeypatch.setenv("DUALITY_KERNELS", "off")
    torch._dynamo.reset()
    expected = gradients(net, run)
    for one, other in zip(found, expected):
        assert float((one - other).norm() / other.norm().clamp_min(1e-6)) < 1e-5
    torch._dynamo.reset()
