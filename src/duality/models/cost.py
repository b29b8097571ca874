"""What a step of a recipe costs a GPU: its kernels, bytes, operations and waits, counted on the real code.

``count_training`` takes two training steps (``training.loop.take_step``) of each phase on a GPU without numbers
(``fake_gpu``), and ``count_sampling`` two steps of a sampler; the second one is counted. Nothing is assumed about a
method: a new objective, a new network is counted by itself. ``roofline`` makes times of it.

Kernels are those of a machine with Triton and a compiler. The blocks are compiled if the recipe says so, or "auto".
Half of the positions are masked, where there is a mask token.

What must hold: nothing that the count pretends reaches the caller: it runs in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from typing import TypeVar
from unittest.mock import patch

import torch
from torch import nn

from duality.data.loader import Batch
from duality.denoisers.wrapping import network_of
from duality.models.fake_gpu import FakeGPU
from duality.models.roofline import GPU, Cost
from duality.models.sampling import with_memo
from duality.models.size import Outline, expected_vocabulary
from duality.noise import Noise
from duality.protocols import Phase, Vocabulary
from duality.recipes.derive import method_phases
from duality.recipes.recipe import Data, Recipe
from duality.registry import one_line
from duality.samplers.generate import levels
from duality.training.loop import TrainState, take_step
from duality.training.precision import computing

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class PhaseCost:
    """A training step of a phase: the cost of one with one micro-batch and, if there are more, of one with two."""

    name: str
    steps: int
    one: Cost
    two: Cost | None = None

    def seconds(self, gpu: GPU, micro_batches: int = 1) -> float:
        """The time of a step with so many micro-batches."""
        first = self.one.seconds(gpu)
        return first if self.two is None else first + (micro_batches - 1) * (self.two.seconds(gpu) - first)


@dataclass(frozen=True)
class _Rows:
    """Batches of tokens that are all 0, with the masks that the data would have."""

    rows: int
    data: Data

    def batch(self, step: int) -> Batch:
        """The same for every step."""
        ids = torch.zeros(self.rows, self.data.length, dtype=torch.int64)
        documents, labels = self.data.packing == "document", ids[:, 0] if self.data.labels else None
        if documents and self.data.padding == "ignore":
            return Batch(ids, ids == 0, labels)
        padding = ids > 0 if documents else None
        return Batch(
            ids, None, labels, padding, ids == 0 if padding is not None and self.data.padding == "light" else None
        )


def in_own_process(function: Callable[..., _Result], *args: object) -> _Result:
    """What a function returns in a process that does nothing else; its errors are raised here."""
    return _other_process().submit(_run, function, *args).result()


@cache
def _other_process() -> ProcessPoolExecutor:
    """A process that is started once."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _run(function: Callable[..., _Result], *args: object) -> _Result:
    """The function, whose error becomes one that can be sent to another process."""
    try:
        return function(*args)
    except Exception as error:
        raise ValueError(f"it cannot be counted ({type(error).__name__}: {one_line(error)})") from None


def count_training(recipe: Recipe, rows: int, micro_batches: int = 1) -> list[PhaseCost]:
    """The cost of a step of each phase on a device that has ``rows`` rows at a time; in a process of its own."""
    return in_own_process(_count_phases, recipe, rows, micro_batches)


def count_sampling(recipe: Recipe, batch: int) -> Cost:
    """The cost of a step of the recipe's sampler for so many samples; in a process of its own."""
    return in_own_process(_count_sampling, recipe, batch)


def _count_phases(recipe: Recipe, rows: int, micro_batches: int) -> list[PhaseCost]:
    """One entry for each kind of objective, with the steps of all phases that have it."""
    found: dict[type, PhaseCost] = {}
    for start, phase in _phases(recipe):
        kind = type(phase.objective)
        steps = phase.until - start
        if kind in found:
            found[kind] = replace(found[kind], steps=found[kind].steps + steps)
            continue
        step = min(start + 1, phase.until - 1)  # not the one in which a teacher is copied
        costs = [_count_step(recipe, rows, count, step) for count in range(1, min(micro_batches, 2) + 1)]
        found[kind] = PhaseCost(phase.name, steps, costs[0], costs[1] if len(costs) > 1 else None)
    return list(found.values())


def _phases(recipe: Recipe) -> Iterator[tuple[int, Phase]]:
    """The phases and where they begin."""
    vocabulary = expected_vocabulary(recipe)
    teacher = None if recipe.distillation is None else Outline(recipe, vocabulary).network
    start = 0
    for phase in method_phases(recipe, vocabulary.num_tokens, teacher):
        if phase.until > start:
            yield start, phase
            start = phase.until


def _count_step(recipe: Recipe, rows: int, micro_batches: int, step: int) -> Cost:
    """The cost of a training step, after one that made what is made once."""
    batch, compiled = rows * micro_batches, recipe.training.compile is not False
    training = replace(
        recipe.training, batch_size=batch, micro_batch=rows if micro_batches > 1 else 0, compile=compiled
    )
    vocabulary = expected_vocabulary(recipe)
    loader = _Rows(batch, recipe.data)
    share = _share_of(recipe)
    answers = {"_choose_rows": [int(share * rows * recipe.data.length)]}  # positions with a loss; nothing is certain
    with _with_kernels(), FakeGPU(share, answers) as gpu:
        model = _network(recipe, vocabulary, gpu)
        teacher = None if recipe.distillation is None else _network(recipe, vocabulary, gpu)
        state = TrainState.fresh(model, training, teacher)
        phases = method_phases(recipe, vocabulary.num_tokens, teacher)
        for _ in range(2):
            state.step = step
            gpu.reset()
            take_step(state, loader, phases, training)  # type: ignore[arg-type]
    return gpu.cost


def _network(recipe: Recipe, vocabulary: Vocabulary, gpu: FakeGPU) -> nn.Module:
    """The recipe's network on the GPU."""
    return gpu.place(Outline(recipe, vocabulary).network)


def _share_of(recipe: Recipe) -> float:
    """The share of the positions that have to be read: the masked ones, or all."""
    process = recipe.method.process(expected_vocabulary(recipe).num_tokens)
    return 1.0 if process is None or process.mask_id is None else 0.5


def _with_kernels() -> AbstractContextManager[object]:
    """The package's own kernels are used, whether they run here or not."""
    return patch.dict(os.environ, {"DUALITY_KERNELS": "on"})


@torch.no_grad()
def _count_sampling(recipe: Recipe, batch: int) -> Cost:
    vocabulary, length = expected_vocabulary(recipe), recipe.data.length
    sampler = recipe.method.sampler(vocabulary.num_tokens)
    steps = sampler.steps(length, recipe.generation.steps)
    with _with_kernels(), FakeGPU(_share_of(recipe)) as gpu, ExitStack() as inside:
        model = _network(recipe, vocabulary, gpu)
        denoiser, device = with_memo(model), next(model.parameters()).device
        inside.enter_context(computing("auto", device))
        alphas = levels(recipe.method.sampling_schedule(), steps).to(device)
        noise = Noise.of(0, 0, torch.arange(batch, device=device)).fold("generate")
        state = sampler.start(denoiser, length, steps, noise)
        if network_of(denoiser).causal:
            state.prefix.cache.length = length // 2  # a step in the middle
        for step in range(2):
            gpu.reset()
            now, later = (alphas[steps // 2 + step + each].expand(batch) for each in range(2))
            state = sampler.step(denoiser, state, now, later, noise.fold(step))
    return gpu.cost
