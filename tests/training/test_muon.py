"""Muon: its step against the library's, its orthogonal matrices, its state in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import nn

from duality.networks.dit import DiT, DiTNetwork
from duality.training.checkpoint import save
from duality.training.loop import TrainState
from duality.training.muon import Muon, _orthogonal
from duality.training.settings import Training

T = TypeVar("T", bound=nn.Module)


def network() -> DiTNetwork:
    torch.manual_seed(0)
    return DiT(width=32, depth=2, heads=2, time_width=8, dropout=0.0).build(11)


def with_gradients(model: T, seed: int = 1) -> T:
    noise = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=noise)
    return model


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 64)])
def test_singular_values_become_one_and_singular_vectors_stay(shape: tuple[int, int, int]) -> None:
    noise = torch.Generator().manual_seed(0)
    given = torch.randn(shape, generator=noise, dtype=torch.float64)
    found = _orthogonal(given)
    u, _, v = torch.linalg.svd(given, full_matrices=False)
    rotated = u.mT @ found @ v.mT
    values = rotated.diagonal(dim1=1, dim2=2)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    assert torch.allclose(rotated, torch.diag_embed(values), atol=1e-10)


def test_a_step_of_a_matrix_is_that_of_the_library() -> None:
    """The library computes in bfloat16, which has 8 bits."""
    ours, theirs = with_gradients(network()), with_gradients(network())
    Muon(ours, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1).step()
    library = torch.optim.Muon(theirs.hidden_matrices(), lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    library.step()  # type: ignore[no-untyped-call]
    for one, other, before in zip(
        ours.hidden_matrices(), theirs.hidden_matrices(), network().hidden_matrices(), strict=True
    ):
        assert torch.allclose(one - before, other - before, atol=3e-4)
        assert float((one - before).detach().square().mean().sqrt()) == pytest.approx(0.002, rel=0.25)


def test_everything_else_takes_the_step_of_adamw() -> None:
    ours, theirs = with_gradients(network()), with_gradients(network())
    Muon(ours, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1).step()
    torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.1).step()
    matrices = {id(each) for each in ours.hidden_matrices()}
    pairs = [pair for pair in zip(ours.parameters(), theirs.parameters(), strict=True) if id(pair[0]) not in matrices]
    assert len(pairs) > 8
    for one, other in pairs:
        assert torch.allclose(one, other, atol=1e-7)


def test_a_restored_state_continues_bit_for_bit(tmp_path: Path) -> None:
    training = Training(optimizer="muon", learning_rate=0.01, steps=10)
    whole = TrainState.fresh(network(), training)
    for step in range(4):
        with_gradients(whole.model, step)
        whole.optimizer.step()
    parted = TrainState.fresh(network(), training)
    for step in range(2):
        with_gradients(parted.model, step)
        parted.optimizer.step()
    saved = {name: {key: value.clone() for key, value in group.items()} for name, group in parted.groups().items()}
    assert any(key.endswith(".momentum") for key in saved["optimizer"])
    resumed = TrainState.fresh(network(), training)
    resumed.restore(save(tmp_path, 2, saved, {}))
    for step in range(2, 4):
        with_gradients(resumed.model, step)
        resumed.optimizer.step()
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_network_without_matrices_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hidden_matrices.*use adamw"):
        TrainState.fresh(nn.Linear(3, 3), Training(optimizer="muon"))
