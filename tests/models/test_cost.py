"""The cost of a step on a GPU, counted without one: what is counted is what runs, its time that of a queue."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from duality.data.loader import Batch
from duality.models.cost import count_sampling, count_training, in_own_process
from duality.models.fake_gpu import FakeGPU
from duality.models.roofline import GPUS, Cost, Event, find_gpu, summarise
from duality.models.size import expected_vocabulary
from duality.recipes.catalogue import recipe, recipe_names
from duality.recipes.derive import derive_distillation, method_phases
from duality.recipes.recipe import Recipe
from duality.training.loop import TrainState, take_step

H100 = GPUS["H100"]
SMALL = ("backbone=nano", "data.length=32", "data.tokenizer=bytes")


def kernels(cost: Cost) -> list[str]:
    return [event.name for event in cost.events if event.kind == "kernel"]


# --- what is counted. Each runs in a process of its own, as nothing that is pretended may reach the other tests


def count_layer() -> Cost:
    """A layer and its gradients: 64 rows of 32 numbers become 16."""
    with FakeGPU() as gpu:
        layer = gpu.place(nn.Linear(32, 16))
        x = torch.zeros(64, 32, device="cuda")
        assert x.device == torch.device("cuda", 0)
        assert x.is_cuda
        gpu.reset()
        layer(x).sum().backward()
        return gpu.cost


def test_the_bytes_and_operations_of_a_layer_are_counted() -> None:
    cost = in_own_process(count_layer)
    assert kernels(cost)[:2] == ["addmm", "sum"]
    product = cost.events[[event.name for event in cost.events].index("addmm")]
    assert product.moved == 4 * (64 * 32 + 32 * 16 + 16 + 64 * 16)
    assert product.operations == 2 * 64 * 32 * 16
    assert cost.operations == 2 * product.operations  # x needs no gradient
    assert cost.num_syncs == 0


def count_lower() -> Cost:
    with FakeGPU() as gpu:
        layer = gpu.place(nn.Linear(32, 16))
        x = torch.zeros(64, 32, device="cuda")
        gpu.reset()
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.is_autocast_enabled("cuda")
            assert layer(x).dtype == torch.bfloat16
        return gpu.cost


def test_autocast_lowers_products() -> None:
    product = in_own_process(count_lower).events[-1]
    assert (product.name, product.arithmetic) == ("addmm", "bfloat16")
    assert product.moved == 2 * (64 * 32 + 32 * 16 + 16 + 64 * 16)


def count_waits() -> tuple[Cost, Cost, list[bool]]:
    with FakeGPU() as gpu:
        x = torch.zeros(100, device="cuda")
        gpu.reset()
        waits = (
            lambda: x.sum().item(),
            lambda: bool((x > 0).any()),
            lambda: x[:3].tolist(),
            lambda: (x > 0).nonzero(),
            lambda: x[x > 0],
            lambda: x.cpu(),
            lambda: torch.tensor([1.0, 2.0], device="cuda"),
            lambda: torch.zeros(3).to("cuda"),
        )
        for wait in waits:
            wait()
        some, before = gpu.cost, torch.zeros(3)
        gpu.reset()
        y = torch.arange(100, device="cuda") * x + 1
        y.add_(x), y.view(10, 10).t(), torch.where(y > 0, x, y), before.to("cuda", non_blocking=True)
        return some, gpu.cost, [before.is_cuda, y.is_cuda, y.cpu().is_cuda]


def test_the_host_waits_where_it_reads_a_number() -> None:
    some, none, where = in_own_process(count_waits)
    assert [event.name for event in some.events if event.kind == "sync"] == [
        *("item", "item", "tolist", "nonzero", "nonzero", "copy to the host"),
        *("copy to the device", "copy to the device"),
    ]
    assert none.num_syncs == 0
    assert [event.name for event in none.events if event.kind == "view"] == ["view", "t"]
    assert where == [False, True, False]


@torch.library.custom_op("duality_test::twice", mutates_args=("y",))
def twice(x: Tensor, y: Tensor) -> Tensor:
    raise NotImplementedError


@twice.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
    return torch.empty_like(x)


def count_own_kernel() -> Cost:
    with FakeGPU() as gpu:
        x, y = torch.zeros(100, device="cuda"), torch.zeros(7, device="cuda")
        gpu.reset()
        assert twice(x, y).is_cuda
        return gpu.cost


def test_a_kernel_of_ones_own_is_counted_by_what_it_reads_and_writes() -> None:
    (event,) = in_own_process(count_own_kernel).events
    assert (event.kind, event.name, event.moved) == ("kernel", "twice", 4 * (100 + 100 + 7 + 7))


def test_nothing_of_a_count_reaches_this_process() -> None:
    in_own_process(count_waits)
    assert not torch.is_autocast_enabled("cpu")
    assert torch.zeros(3).tolist() == [0.0, 0.0, 0.0]
    assert torch.cuda.is_available() == (torch.version.cuda is not None and torch.cuda.device_count() > 0)


def fail() -> None:
    raise RuntimeError("a reason\nof two lines")


def test_what_cannot_be_counted_is_an_error_of_one_line() -> None:
    with pytest.raises(ValueError, match=r"it cannot be counted \(RuntimeError: a reason of two lines\)"):
        in_own_process(fail)


# --- what is compiled


class Pair(NamedTuple):
    factor: Tensor
    summand: Tensor


class Chain(nn.Module):
    """A product, five elementwise operations, a normalisation, a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(64, 64, bias=False), nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: Tensor, more: Pair) -> Tensor:
        h: Tensor = self.first(x)
        h = (h * more.factor + more.summand).relu() * 2 + 1
        second: Tensor = self.second(self.norm(h))
        return second


def count_chain(compiled: bool, learning: bool) -> Cost:
    with FakeGPU() as gpu, torch.set_grad_enabled(learning):
        chain = gpu.place(Chain())
        if compiled:
            chain.compile()
        x, factor = (torch.zeros(512, 64, device="cuda") for _ in range(2))
        more = Pair(factor, factor)
        gpu.reset()
        for _ in range(2):
            made = chain(x, more)
            if learning:
                made.sum().backward()
        return gpu.cost


def test_a_compiled_chain_reads_its_inputs_once_and_writes_its_result_once() -> None:
    cost = in_own_process(count_chain, True, False)
    once = [event for event in cost.events if event.kind == "kernel"][: cost.num_kernels // 2]
    assert [event.name.split()[0] for event in once] == ["mm", "fused", "addmm"]
    rows = 4 * 512 * 64
    # the product, the factor, which is the summand too; the result; weight and bias of the norm
    assert once[1].moved == 3 * rows + 2 * 4 * 64


def test_compiling_changes_bytes_and_not_operations() -> None:
    plain, compiled = (in_own_process(count_chain, each, True) for each in (False, True))
    assert compiled.operations == plain.operations
    assert compiled.moved < 0.7 * plain.moved
    assert compiled.num_kernels < plain.num_kernels
    backward = [event for event in compiled.events if event.place.startswith("backward of") and event.operations]
    assert len(backward) == 2 * 3  # the gradients of two weights, and of what the second product reads


# --- whole steps


def real_operations(chosen: Recipe, rows: int) -> float:
    """The operations of a training step here, by torch's own counter."""

    class Rows:
        def batch(self, step: int) -> Batch:
            return Batch(torch.zeros(rows, chosen.data.length, dtype=torch.int64), None)

    training = replace(chosen.training, batch_size=rows)
    vocabulary = expected_vocabulary(chosen)
    state = TrainState.fresh(chosen.method.network(chosen.backbone, vocabulary), training)
    state.step = 1

    def in_place(_sum: tuple[int, ...], one: tuple[int, ...], two: tuple[int, ...], **_: object) -> int:
        return 2 * one[0] * one[1] * two[1]

    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place}) as counter:
        take_step(state, Rows(), method_phases(chosen, vocabulary.num_tokens), training)  # type: ignore[arg-type]
    return float(counter.get_total_flops())


@pytest.mark.parametrize("name", ["duo-laptop", "ar-laptop", "sedd-uniform-laptop"])
def test_the_products_of_a_step_are_those_that_run(name: str) -> None:
    """But for attention, which torch's counter does not know on a CPU, and for the head, which a GPU pads."""
    chosen = recipe(name, (*SMALL, "training.compile=false"))
    cost = count_training(chosen, 4)[0].one
    products = cost.part(lambda event: not event.attention)
    padding = 3 * 2 * (4 * 32) * 64 * (-257 % 64)  # three products of vectors of 64 numbers with 257 states
    assert products.operations == real_operations(chosen, 4) + padding


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith("-laptop")])
def test_every_method_can_be_counted(name: str) -> None:
    for phase in count_training(recipe(name, SMALL), 2):
        assert phase.one.num_kernels > 50, phase.name
        assert phase.one.seconds(H100) > 0
    assert count_sampling(recipe(name, SMALL), 2).num_kernels > 10


@pytest.mark.parametrize(("name", "kind"), [("duo-laptop", "dcd"), ("mdlm-laptop", "sdtt")])
def test_the_rounds_of_a_distillation_are_counted_once(name: str, kind: str) -> None:
    chosen = derive_distillation(recipe(name, SMALL), kind, 1000)
    (phase,) = count_training(chosen, 2)
    assert phase.steps == chosen.training.steps
    alone = count_training(recipe(name, SMALL), 2)[-1]
    assert phase.one.operations > 1.2 * alone.one.operations  # the teacher's pass


@pytest.mark.parametrize(("compiled", "matrices"), [("true", 12), ("false", 8)])
def test_blocks_that_are_computed_again_cost_a_forward_pass_more(compiled: str, matrices: int) -> None:
    """Without compiling, up to the last product, whose result no gradient needs."""
    settings = (*SMALL, "backbone.depth=8", f"training.compile={compiled}")
    plain, again = (
        count_training(recipe("ar-laptop", (*settings, f"training.recompute={value}")), 4)[0].one
        for value in ("false", "true")
    )
    blocks = 2 * 8 * (matrices * 64**2) * 4 * 32
    attention = 8 * 4 * 4 * 2 * 32 * 32 * 32 / 2
    assert again.operations - plain.operations == pytest.approx(blocks + attention, rel=0.01)


def test_a_micro_batch_more_costs_all_but_the_optimizer() -> None:
    (phase,) = count_training(recipe("ar-laptop", SMALL), 4, 3)
    assert phase.two is not None
    more = phase.two.operations - phase.one.operations
    assert more == phase.one.operations
    assert phase.one.seconds(H100) < phase.two.seconds(H100) < 2 * phase.one.seconds(H100)
    assert phase.seconds(H100, 3) > phase.two.seconds(H100)


# --- times


def test_a_kernel_takes_the_longer_of_bytes_and_operations() -> None:
    assert Event("kernel", "", "", H100.bandwidth * 0.85).seconds(H100) == pytest.approx(1.0)
    assert Event("kernel", "", "", 1.0, H100.bfloat16 * 0.65, "bfloat16").seconds(H100) == pytest.approx(1.0)
    assert Event("kernel", "", "", 1.0, H100.tf32 * 0.65, "tf32").seconds(H100) == pytest.approx(1.0)
    assert Event("kernel", "", "", 1.0, H100.float32 * 0.8, "float32").seconds(H100) == pytest.approx(1.0)
    assert Event("kernel", "", "", 1.0, H100.bfloat16 * 0.45, "bfloat16", True).seconds(H100) == pytest.approx(1.0)
    assert Event("kernel", "", "").seconds(H100) == 2.5e-6


def test_the_device_waits_for_the_host_or_the_host_for_the_device() -> None:
    short, long = Event("kernel", ""), Event("kernel", "", "", H100.bandwidth * 0.85 * 1e-3)
    wait, view = Event("sync", ""), Event("view", "")
    assert Cost((short,) * 1000).seconds(H100) == pytest.approx(1000 * 6e-6 + 2.5e-6)
    assert Cost((long,) * 10).seconds(H100) == pytest.approx(10e-3 + 6e-6)
    assert Cost((long, *[view] * 1000)).seconds(H100) == pytest.approx(6e-6 + 1.5e-3)
    assert Cost((long, wait, long)).seconds(H100) == pytest.approx(2e-3 + 2 * 6e-6 + 12e-6)


def test_kernels_are_summed_by_place() -> None:
    events = [Event("kernel", "a/b.py:1", "", 3e9), Event("kernel", "a/c.py:2", "", 1e9), Event("kernel", "d.py:3")]
    rows = summarise(events, lambda event: event.room, [H100])
    assert [(row.place, row.kernels, row.moved) for row in rows] == [("a", 2, 4e9), ("d.py", 1, 0.0)]


def test_gpus_are_known_by_a_part_of_their_name() -> None:
    assert find_gpu("NVIDIA A100-SXM4-80GB") is GPUS["A100"]
    assert find_gpu("NVIDIA L40S") is GPUS["L40S"]
    assert find_gpu("a device that nobody knows") is None


def test_attention_reads_and_writes_four_tensors() -> None:
    cost = in_own_process(count_attention)
    (event,) = [event for event in cost.events if event.attention]
    assert event.operations == 4 * 2 * 3 * 16 * 16 * 8 / 2
    assert event.moved == pytest.approx(4 * 2 * (2 * 3 * 16 * 8) + 4 * 2 * 3 * 16)  # and a number for each row


def count_attention() -> Cost:
    with FakeGPU() as gpu, torch.no_grad():
        q = torch.zeros(2, 3, 16, 8, device="cuda", dtype=torch.bfloat16)
        gpu.reset()
        F.scaled_dot_product_attention(q, q.clone(), q.clone(), is_causal=True)
        return gpu.cost
