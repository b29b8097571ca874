"""Recomputing and compiling: the same numbers, and used only if the recipe says so."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import session
from support.runs import quiet, small_recipe

from duality.models import model as run_model
from duality.networks import SIZES
from duality.networks.dit import DiTNetwork
from duality.noise import Noise
from duality.protocols import TopK, Vocabulary
from duality.training.loop import TrainState
from duality.training.settings import Training

NANO = replace(SIZES["nano"](), dropout=0.3)


def random_network(dtype: torch.dtype = torch.float32, **options: Any) -> DiTNetwork:
    """A network with dropout in which zero-initialised weights are random too."""
    torch.manual_seed(0)
    network: DiTNetwork = NANO.build(11, **options).to(dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def outcome(network: DiTNetwork, padded: bool = False, soft: bool = False) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The hidden states of three rows, and the gradient of all parameters that have one."""
    ids = torch.arange(18).view(3, 6) * 7 % 11
    z = TopK(torch.stack([ids, (ids + 1) % 11], -1), torch.tensor([0.75, 0.25]).expand(3, 6, 2)) if soft else ids
    valid = torch.arange(6)[None] < torch.tensor([[6], [4], [5]]) if padded else None
    labels = torch.tensor([0, 1, 2]) if network.num_labels else None
    network.zero_grad()
    hidden = network.hidden(z, torch.tensor([0.1, 1.0, 3.0]), valid, Noise.of(0, 0, torch.arange(3)), labels)
    torch.autograd.backward(hidden.square().sum())
    return hidden.detach(), [value.grad for value in network.parameters() if value.grad is not None]


def saved_bytes(network: DiTNetwork) -> int:
    """The bytes that a forward pass keeps for the backward pass, without the weights."""
    own = {parameter.data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def note(value: torch.Tensor) -> torch.Tensor:
        if value.data_ptr() not in own:
            kept[value.data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        hidden = network.hidden(torch.zeros(8, 32, dtype=torch.int64), torch.rand(8), None, Noise(torch.arange(8)))
    assert hidden.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"num_labels": 3}], ids=["plain", "causal", "labels"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("soft", [False, True], ids=["tokens", "mixtures"])
def test_recomputed_gradients_are_the_same_bit_for_bit(options: dict[str, Any], padded: bool, soft: bool) -> None:
    network = random_network(**options)
    hidden, gradients = outcome(network, padded, soft)
    network.recompute = True
    again, recomputed = outcome(network, padded, soft)
    assert torch.equal(hidden, again)
    assert len(gradients) == len(recomputed) > 10
    assert all(torch.equal(a, b) for a, b in zip(gradients, recomputed, strict=True))


def test_recomputing_keeps_less_memory() -> None:
    """Of each block only the input is kept, without the values of dropout."""
    deep = replace(NANO, depth=6).build(11)
    before = saved_bytes(deep)
    deep.recompute = True
    assert saved_bytes(deep) < before / 5


def test_the_options_reach_every_network_and_change_nothing_else(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english, "backbone.dropout=0.2", "training.steps=4")
    session.train(recipe, tmp_path / "plain", report=quiet)
    built: list[TrainState] = []
    fresh = TrainState.fresh

    def remember(*arguments: Any) -> TrainState:
        built.append(fresh(*arguments))
        return built[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainState, "fresh", staticmethod(remember))
        again = replace(recipe, training=replace(recipe.training, recompute=True))
        session.train(again, tmp_path / "recomputed", report=quiet)
    networks = [part for part in built[0].model.modules() if isinstance(part, DiTNetwork)]
    assert [network.recompute for network in networks] == [True]
    plain, recomputed = (run_model.load(tmp_path / name, quiet) for name in ("plain", "recomputed"))
    for ours, theirs in zip(plain.denoiser.parameters(), recomputed.denoiser.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_without_a_compiler_compiling_is_refused_and_otherwise_not_attempted(
    english: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = run_model.network(small_recipe(english), Vocabulary(5))
    TrainState.fresh(model, Training())
    with pytest.raises(ValueError, match=r"'no-such-compiler'.*CXX.*training\.compile=false"):
        TrainState.fresh(model, Training(compile=True))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_step_is_the_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One compilation for all blocks, with dropout, and with recomputing too."""
    monkeypatch.delenv("CXX", raising=False)
    network = random_network()
    hidden, gradients = outcome(network)
    names = list(network.state_dict())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    network.prepare(recompute=False, compile=True)
    assert list(network.state_dict()) == names
    for recompute in (False, True):
        network.recompute = recompute
        compiled, translated = outcome(network)
        assert torch.allclose(compiled, hidden, rtol=1e-5, atol=1e-5 * float(hidden.abs().max()))
        for ours, theirs in zip(translated, gradients, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()) + 1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
