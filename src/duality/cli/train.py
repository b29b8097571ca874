"""The commands `train`, `distill` and `plan`: a recipe, or a trained run, becomes a run folder with a model."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from duality.cli import options
from duality.cli.console import print_table, say
from duality.cli.options import Assignments, Device, DistillationName, Log, Name
from duality.files.atomic import json_text
from duality.ranks import job
from duality.runs.requests import DistillRequest, RoundChanges, TrainRequest

if TYPE_CHECKING:
    from duality.models.plan import Fit, Sizes, Speed
    from duality.models.roofline import GPU
    from duality.recipes.recipe import Recipe
    from duality.runs.resume import TrainingPlan

_SHARED = {"out": Path | None, "set": Assignments}
_TEXT = {"recipe": options.MaybeName, "start": options.Start, "data": str | None, "column": options.Column}
_TrainFlags = options.make_flags(TrainRequest, **_TEXT, **_SHARED)
_BASE = {"run": options.AnyModel, "method": DistillationName | None, "corpus": str | None}
_ROUNDS = Annotated[RoundChanges, arg(name="")]
_DistillFlags = options.make_flags(DistillRequest, **_BASE, changes=_ROUNDS, **_SHARED)
_Training = Annotated[TrainRequest, arg(name="", constructor=_TrainFlags)]
_Distilling = Annotated[DistillRequest, arg(name="", constructor=_DistillFlags)]


def train(request: _Training, device: Device = "auto", log: Log = (), dry_run: bool = False) -> int:
    """Train a recipe into a run folder, from new weights or from those of a trained model.

    Args:
        request: the training.
        dry_run: print the recipe as it would run, with its parameters and memory, and stop.
    """
    from duality.runs.train import plan_training

    plan = plan_training(replace(request, resume=request.resume or job().restarts > 0))
    return _carry_out(plan, device, log, dry_run)


def distill(request: _Distilling, device: Device = "auto", log: Log = (), dry_run: bool = False) -> int:
    """Distill a trained run into one that writes in few steps; the result is a run like any other.

    Args:
        request: the distillation.
        dry_run: print the recipe as it would run, with its parameters and memory, and stop.
    """
    from duality.runs.train import plan_distillation

    plan = plan_distillation(replace(request, resume=request.resume or job().restarts > 0))
    return _carry_out(plan, device, log, dry_run)


def _carry_out(plan: TrainingPlan, device: Device, log: Log, dry_run: bool) -> int:
    """Train as planned and show it, or say what would be trained; the exit code."""
    if dry_run:
        from duality.models.size import describe

        print(describe(plan.recipe))
        return 0
    from duality.runs.session import show_training
    from duality.training.metrics import HELD_OUT, read_metrics

    with suppress(OSError, AttributeError):  # not every system has it
        if busy := _describe_load(os.getloadavg()[0]):
            say(busy)
    with show_training(say, plan.recipe.training.steps) as watch:
        outcome = plan.run(device=device, report=say, watch=watch, log=log)
    if outcome.signal:
        say(f"stopped by a signal at step {outcome.step}; saved. Continue with the same command and --resume")
        return 128 + outcome.signal
    last = [row for row in read_metrics(plan.folder) if "validation_nats" in row][-1]
    value, error = (math.inf if last[name] is None else last[name] for name in HELD_OUT)
    nats = f"{value:.4f} ± {error:.4f} nats per token"
    print(f"{plan.folder}: step {last['step']}, validation {nats} ({last.get('validation_kind', 'bound')})")
    return 0


def _describe_load(load: float) -> str | None:
    """What to say if other programs use the cores that this one is about to use.

    Two threads that wait for each other are slower than one as soon as one of them has to share its core.
    """
    import torch

    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    free = cores - load
    if torch.cuda.is_available() or threads == 1 or not job().alone or threads <= free + 0.5:
        return None
    return (
        f"other programs use {load:.1f} of the {cores} cores, and this training {threads} threads: it may be faster "
        f"with OMP_NUM_THREADS={max(1, int(free))}; the digits of a run depend on it, so it is not changed for you"
    )


def plan(
    recipe: Name,
    devices: int = 1,
    gpu: str = "H100",
    memory: str | None = None,
    measured: float | None = None,
    kind: Literal["cuda", "cpu"] = "cuda",
    distill: DistillationName | None = None,
    assignments: Assignments = (),
    json: bool = False,
) -> None:
    """Say what a training needs on many devices: memory, batch, bytes over the network, time.

    Args:
        recipe: a name that `duality recipes` lists, or a run folder.
        devices: how many devices: GPUs, or processes on CPUs.
        gpu: the GPU, by a part of its name: H200, H100, A100, L40S, L4, 4090 or 3090. The kernels of a step are counted
            and its time is simulated.
        memory: of one device, such as 80GB or 24GiB; that of the GPU if not given.
        measured: seconds of a step that you have timed on such a device, with its share of the batch; it replaces the
            simulated time.
        kind: kind of the devices: a GPU computes in bfloat16 where the recipe says auto, a CPU in float32; a CPU has no
            time but a measured one.
        distill: plan the distillation of a run of this recipe instead: dcd (for uniform noise) or sdtt (absorbing).
        assignments: change a field of the recipe, such as --set backbone=medium; can be repeated.
        json: print one JSON object instead of a table.
    """
    import torch

    from duality.models.folder import exists, read_recipe
    from duality.models.plan import Sizes, check_plan, find_speed
    from duality.recipes import catalogue
    from duality.recipes.derive import derive_distillation

    chosen = read_recipe(Path(recipe)) if exists(Path(recipe)) else catalogue.recipe(recipe)
    if distill:
        chosen = derive_distillation(chosen, distill, chosen.training.steps)
    chosen = catalogue.modify(chosen, assignments)
    check_plan(chosen, devices, say)
    _check_seconds(measured)
    known, where = _find_gpu(gpu, kind), torch.device(kind)
    room = _find_memory(memory, known)
    sizes = Sizes.of(chosen, where)
    rows = list(sizes.try_strategies(chosen, devices, room, where))
    fit = next((row for row in rows if row.is_within(room)), rows[0])
    speed = find_speed(chosen, sizes, fit, known, measured)
    least = sizes.find_smallest(chosen, room, where)
    if json:
        strategies = [{**asdict(row), "memory": row.memory, "fits": row.is_within(room)} for row in rows]
        smallest = least and {"devices": least.devices, "strategy": least.strategy}
        about = {"recipe": chosen.name, "parameters": sizes.parameters, "trained": sizes.trained}
        about |= {"gpu": known and known.name}
        print(json_text({**about, "strategies": strategies, "speed": speed and asdict(speed), "smallest": smallest}))
    else:
        _print_plan(chosen, sizes, rows, room, least)
        if speed is not None:
            print(_describe_speed(speed, known.name if known and measured is None else None))


_UNITS = {"GB": 1e9, "GiB": 2.0**30, "MB": 1e6, "MiB": 2.0**20}


def _check_seconds(measured: float | None) -> None:
    """Refuse a time that cannot be."""
    if measured is not None and not 0 < measured < math.inf:
        raise ValueError(f"--measured {measured}: it is the time of a step in seconds, above 0")


def _find_memory(given: str | None, gpu: GPU | None) -> float:
    """The bytes of a device: those that are given, or those of the GPU."""
    if given is None and gpu is None:
        raise ValueError("--kind cpu needs the memory of a device: --memory 64GB")
    return gpu.memory if given is None and gpu else _parse_number(given or "", "--memory", _UNITS)


def _find_gpu(name: str, kind: str) -> GPU | None:
    """The GPU of this name; None for a CPU."""
    from duality.models.roofline import GPUS, find_gpu

    if kind == "cpu":
        return None
    known = find_gpu(name)
    if known is None:
        raise ValueError(f"--gpu {name!r}: choose from {', '.join(GPUS)}; for another one take the most similar")
    return known


def _describe_speed(speed: Speed, gpu: str | None) -> str:
    """The speed in words: simulated for a GPU, or measured."""
    each = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in speed.phases.items())
    source = "as measured" if gpu is None else f"simulated for the {gpu}, gradients over the network left out"
    phases = f" ({each})" if len(speed.phases) > 1 else ""
    share = "" if speed.mfu is None else f", {speed.mfu:.0%} of the peak"
    return (
        f"{speed.step_seconds:.3g} s a step{phases}, {source}\n{speed.tokens_per_second:,.0f} tokens per second, "
        f"{speed.days:,.2f} days{share} ({speed.operations / 1e9:,.2f} G operations for each token)"
    )


def _parse_number(text: str, name: str, units: dict[str, float]) -> float:
    """A number with a unit.

    >>> _parse_number("80GB", "--memory", {"GB": 1e9, "GiB": 2.0**30})
    80000000000.0
    >>> _parse_number("80", "--memory", {"GB": 1e9, "GiB": 2.0**30})
    Traceback (most recent call last):
    ValueError: --memory '80': write a number and a unit: GB or GiB, such as 80GB
    """
    for unit, size in units.items():
        with suppress(ValueError):
            if text.endswith(unit) and 0 < (value := float(text.removesuffix(unit))) < math.inf:
                return value * size
    first = next(iter(units))
    raise ValueError(f"{name} {text!r}: write a number and a unit: {' or '.join(units)}, such as 80{first}")


def _print_plan(recipe: Recipe, sizes: Sizes, rows: list[Fit], room: float, least: Fit | None) -> None:
    """Print what a training needs: a row for each strategy, the fewest devices of this room."""
    training, length = recipe.training, recipe.data.length
    part = "" if sizes.trained == sizes.parameters else f", of which {sizes.trained / 1e6:,.2f} M are trained"
    print(
        f"{recipe.name}: {sizes.parameters / 1e6:,.1f} M parameters{part}, {training.steps:,} steps of "
        f"{training.batch_size} x {length:,} tokens, on {rows[0].devices} device(s) of "
        f"{room / 1e9:,.1f} GB"
    )
    parts = ("state", "put together", "activations", "loss", "validation")
    table = []
    for row in rows:
        name = row.strategy if row.shard in (1, row.devices) else f"{row.strategy}, groups of {row.shard}"
        needs = (row.state, row.gathered, row.activations, row.loss, row.validation, row.memory)
        fit, times = "yes" if row.is_within(room) else "no", f"{row.micro_batch} x {row.accumulations}"
        table.append([name, *(f"{size / 1e9:,.2f}" for size in needs), fit, times, f"{row.sent / 1e9:,.2f} GB"])
    print_table(("strategy", *parts, "GB in all", "fits", "rows x times", "sent"), table, width=140)
    if least is None:
        print("it fits on no number of such devices: take a smaller backbone, or --set training.recompute=true")
    else:
        print(f"the smallest number of such devices is {least.devices} ({least.strategy})")
