"""bfloat16 over float32 on this machine: a training step, a likelihood and generation of the laptop recipes.

Both sides are the same recipe in turns, with ``training.precision`` or ``Model.precision`` as the only difference. A
training step is ``take_step``; of a likelihood it is the measure of a batch of 32; generation is as many steps as an
autoregressive model needs, and eight of a diffusion, for a batch of 1 and of 16.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import Scale, network_of
from benchmarks.rows import Report, Row, Size, time_row
from benchmarks.throughput import run_of
from benchmarks.timing import Runner, take_turns
from duality.networks import SIZES
from duality.noise import Noise
from duality.recipes.catalogue import recipe
from duality.recipes.recipe import Recipe
from duality.samplers.generate import generate
from duality.training import Precision
from duality.training.precision import computing, has_bfloat16

RECIPES = {"duo-laptop": 2048, "duo-molecules": 32, "ar-laptop": 2048}  # and the number of their states
PRECISIONS: tuple[Precision, Precision] = ("bfloat16", "float32")
BATCHES = (1, 16)
CPU = torch.device("cpu")


def recipe_of(name: str, scale: Scale) -> Recipe:
    """The recipe; for ``QUICK`` with the small network."""
    chosen = recipe(name)
    return replace(chosen, backbone=scale.backbone) if scale.backbone.width < SIZES["micro"]().width else chosen


def in_precision(precision: Precision, work: Callable[[], Any]) -> None:
    """``work``, without its result."""
    with torch.no_grad(), computing(precision, CPU):
        work()


def training(folder: Path, name: str, chosen: Recipe, scale: Scale) -> Iterator[Row]:
    """A step in each phase."""
    runs = {}
    for precision in PRECISIONS:
        own = replace(chosen, training=replace(chosen.training, precision=precision))
        runs[precision] = run_of(folder / precision, own, RECIPES[name])
    for phase in runs["float32"].phases:
        runners = [Runner(precision, partial(run.step, phase)) for precision, run in runs.items()]
        timings, size = take_turns(runners, 4 * scale.repeats), runs["float32"].size
        yield timed(timings, f"{name}: step, {phase.name}", size)


def timed(timings: Any, name: str, size: Size) -> Row:
    """The row of two precisions."""
    return replace(time_row("precision", timings, *PRECISIONS, "float32", size), name=name)


def uses(name: str, chosen: Recipe, scale: Scale) -> Iterator[Row]:
    """A likelihood, and generation."""
    states, length = RECIPES[name], chosen.data.length
    model = network_of(chosen.method, chosen.backbone, states).requires_grad_(False)
    measure, sampler = chosen.method.measure(states), chosen.method.sampler(states)
    size = Size(states, 32, length)
    x, noise = torch.randint(states, (32, length)), Noise.of(0, 0, torch.arange(32))
    times = torch.linspace(0.01, 0.99, 32, dtype=torch.float64)
    measured = partial(measure, model, x, times, noise)
    turns = [Runner(each, partial(in_precision, each, measured)) for each in PRECISIONS]
    yield timed(take_turns(turns, 4 * scale.repeats), f"{name}: likelihood", size)
    schedule, steps = chosen.method.sampling_schedule(), sampler.steps(length, 8)
    for batch in BATCHES:
        write = partial(generate, model, schedule, sampler, num=batch, length=length, steps=steps)
        turns = [Runner(each, partial(in_precision, each, write)) for each in PRECISIONS]
        yield timed(take_turns(turns, 2 * scale.repeats), f"{name}: generation", Size(states, batch, length))


def section(scale: Scale, report: Report) -> Iterator[Row]:
    """All rows; none on a processor that emulates bfloat16."""
    if not has_bfloat16(CPU):
        report("this processor has no units for bfloat16: nothing is measured")
        return
    for name in RECIPES:
        report(f"{name} in {' and '.join(PRECISIONS)}")
        chosen = recipe_of(name, scale)
        with tempfile.TemporaryDirectory() as place:
            yield from training(Path(place), name, chosen, scale)
        yield from uses(name, chosen, scale)
