"""Muon: its step against the library's, its orthogonal matrices, its state in a checkpoint."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

from duality.networks.dit import DiT, DiTNetwork
from duality.ranks import join_job
from duality.training import Precision
from duality.training.checkpoint import save
from duality.training.loop import TrainState
from duality.training.muon import Muon, _orthogonal
from duality.training.parallel import SINGLE, Layout, gather, put
from duality.training.precision import computing, dtype_on
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


# --- several processes

RANKS = 3
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
CPU = torch.device("cpu")


def odd_network() -> DiTNetwork:
    """Five blocks of width 32: neither the matrices nor the rows of one are as many on each of three ranks."""
    torch.manual_seed(0)
    return DiT(width=32, depth=5, heads=2, time_width=8, dropout=0.0).build(11)


def steps_of(layout: Layout, precision: Precision) -> tuple[list[torch.Tensor], list[int]]:
    """The matrices after two steps, whole; how many matrices this rank made orthogonal in each."""
    model, worked = odd_network(), list[int]()
    layout.wrap(model, None)
    optimizer = Muon(model, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)

    def count(given: torch.Tensor) -> torch.Tensor:
        worked.append(len(given))
        return _orthogonal(given)

    with pytest.MonkeyPatch.context() as patch, computing(precision, CPU):
        patch.setattr("duality.training.muon._orthogonal", count)
        for step in range(2):
            for parameter, like in zip(
                model.parameters(), with_gradients(odd_network(), step).parameters(), strict=True
            ):
                assert like.grad is not None
                parameter.grad = torch.zeros_like(parameter)
                put(parameter.grad, like.grad)
            optimizer.step()
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {torch.float32}
    return [gather(each.detach()).clone() for each in model.hidden_matrices()], worked


def types_sent(layout: Layout, factors: torch.dtype) -> list[str]:
    """The types of a block's weights where they lie and where they are put together, and of the head's."""
    model = odd_network()
    layout.wrap(model, None, factors)
    block, weight = model.blocks[0], "qkv.weight"
    assert isinstance(block, FSDPModule)
    lies = block.get_parameter(weight).dtype
    block.unshard()
    return [str(each) for each in (lies, block.get_parameter(weight).dtype, model.head.weight.dtype)]


def rank_of_job(rank: int, port: int, results: Any) -> None:
    """One process: the matrices under every strategy, in every precision."""
    about = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in about.items()})
    torch.set_num_threads(1)
    with join_job():
        mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",))
        for name, layout in (("ddp", Layout("ddp")), ("fsdp", Layout("fsdp", mesh))):
            for precision in PRECISIONS:
                made, worked = steps_of(layout, precision)
                results.put((rank, name, precision, [each.numpy() for each in made], worked))
        for precision in PRECISIONS:
            results.put((rank, "sent", precision, types_sent(Layout("fsdp", mesh), dtype_on(precision, CPU)), []))


@pytest.mark.slow
def test_ranks_divide_the_work_and_have_the_directions_of_a_single_process() -> None:
    """Rounding aside: a product of several matrices need not have the digits of a product of one."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=rank_of_job, args=(rank, port, results)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    got = [results.get(timeout=120) for _ in range(RANKS * 3 * len(PRECISIONS))]
    for process in ranks:
        process.join()
    for precision in PRECISIONS:
        single, alone = steps_of(SINGLE, precision)
        for layout in ("ddp", "fsdp"):
            same = [(made, worked) for _, *how, made, worked in got if how == [layout, precision]]
            assert len(same) == RANKS
            for place, expected in enumerate(single):
                first, *others = (torch.from_numpy(made[place]) for made, _ in same)
                assert all(torch.equal(each, first) for each in others)
                assert torch.allclose(first, expected, atol=1e-6 if precision == "float32" else 3e-4)
            assert all(sum(worked) <= -(-sum(alone) // RANKS) + len(alone) for _, worked in same)
        types = [found for _, *how, found, _ in got if how == ["sent", precision]]
        assert types == [["torch.float32", f"torch.{precision}", "torch.float32"]] * RANKS
