"""What is to be compiled as a whole is one graph, without a break: the network with dropout, and a sampler's step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gpu.cases import NETWORK
from torch import Tensor

from duality import devices
from duality.denoisers.clamp import Clamped
from duality.denoisers.filters import TopP
from duality.methods.ar import AR
from duality.methods.d3pm import D3PM
from duality.methods.diffusion_bert import DiffusionBERT
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.plaid import Plaid
from duality.methods.sedd import SEDD
from duality.noise import Noise
from duality.protocols import Vocabulary
from duality.samplers.psi import rescale

BATCH, LENGTH, TOKENS = 3, 12, 23
NOISE = Noise.of(0, 0, torch.arange(BATCH))
ALPHA = torch.full((BATCH,), 0.5, dtype=torch.float64)


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    """No graph of another test is there, and none is left."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_of(method: Any) -> Any:
    torch.manual_seed(0)
    model = method.network(NETWORK, Vocabulary(TOKENS)).requires_grad_(False)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("method", [Duo(), AR()], ids=str)
def test_the_network_with_dropout_is_one_graph(method: Any) -> None:
    """Forward and backward; the noise of dropout comes in as keys."""
    model = model_of(method).requires_grad_(True)
    z = NOISE.integers("z", TOKENS, LENGTH)

    def hidden(z: Tensor, alpha: Tensor, keys: Tensor) -> Tensor:
        vectors: Tensor = model.backbone.hidden(z, alpha, None, Noise(keys))
        return vectors

    found = torch.compile(hidden, fullgraph=True, backend="aot_eager")(z, ALPHA, NOISE.keys)
    expected = hidden(z, ALPHA, NOISE.keys)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    weight = model.backbone.blocks[0].qkv.weight
    slope, other = (torch.autograd.grad(vectors.sum(), weight)[0] for vectors in (found, expected))
    assert torch.allclose(slope, other, rtol=1e-4, atol=1e-4)


STEPS: dict[str, tuple[Any, Any]] = {
    "Duo": (Duo(), None),
    "Duo, rescale": (Duo(), rescale),
    "Duo, infill and top-p": (Duo(), "wrapped"),
    "MDLM": (MDLM(), None),
    "D3PM": (D3PM(), None),
    "DiffusionBERT": (DiffusionBERT(), None),
    "SEDD": (SEDD(), None),
    "Plaid": (Plaid(), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
@torch.no_grad()
def test_a_step_of_a_sampler_is_one_graph(name: str) -> None:
    """It has the tokens of the step that is not compiled, and keeps whether its outputs were numbers."""
    method, kind = STEPS[name]
    model = model_of(method)
    sampler = kind(method.process(TOKENS)) if callable(kind) else method.sampler(TOKENS)
    denoiser = model
    if kind == "wrapped":
        denoiser = Clamped(TopP(model, 0.9), torch.arange(LENGTH), torch.arange(LENGTH) < 3)
    start = sampler.start(denoiser, LENGTH, 5, NOISE)
    if isinstance(start, Tensor):
        start = sampler.process.corrupt(NOISE.integers("x", TOKENS, LENGTH), ALPHA, NOISE)

    def step(state: Any, alpha_t: Tensor, alpha_s: Tensor, keys: Tensor) -> Any:
        return sampler.step(denoiser, state, alpha_t, alpha_s, Noise(keys))

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    expected = step(start, ALPHA, ALPHA + 0.1, NOISE.keys)
    devices._kept.seen = torch.zeros((), dtype=torch.bool)
    try:
        found = compiled(start, ALPHA, ALPHA + 0.1, NOISE.keys)
        assert torch.equal(sampler.tokens(denoiser, found), sampler.tokens(denoiser, expected))
        assert not devices._kept.seen
        for weight in model.parameters():
            weight.fill_(torch.nan)
        compiled(start, ALPHA, ALPHA + 0.1, NOISE.keys)
        assert devices._kept.seen
    finally:
        devices._kept.seen = None
