"""The command `plan`: what a training needs on many devices, before it is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from duality.cli.common import Assignments, DistillationName, Flag, Name
from duality.ranks import divisors

if TYPE_CHECKING:
    from duality.models.plan import Fit, Sizes, Speed
    from duality.recipes.recipe import Recipe


def plan(
    recipe: Name,
    /,
    devices: int = 1,
    memory: str = "80GB",
    peak: str | None = None,
    mfu: float = 0.4,
    kind: Literal["cuda", "cpu"] = "cuda",
    distill: DistillationName | None = None,
    assignments: Assignments = (),
    json: Flag = False,
) -> int:
    """Say what a training needs on many devices: memory, batch, bytes over the network, days.

    Args:
        recipe: a name that `duality recipes` lists, or a run folder.
        devices: how many devices: GPUs, or processes on CPUs.
        memory: of one device, such as 80GB or 24GiB.
        peak: operations per second of one device at its best, such as 989T for bfloat16 on an H100; with it, time is
            estimated.
        mfu: the share of the peak that is reached.
        kind: kind of the devices: a GPU computes in bfloat16 where the recipe says auto, a CPU in float32.
        distill: plan the distillation of a run of this recipe instead: dcd (for uniform noise) or sdtt (absorbing).
        assignments: change a field of the recipe, such as --set backbone=medium; can be repeated.
        json: print one JSON object instead of a table.
    """
    import torch

    from duality.files.atomic import json_text
    from duality.models import plan as scaling
    from duality.models.folder import exists, read_recipe
    from duality.recipes import catalogue

    known = read_recipe(Path(recipe)) if exists(Path(recipe)) else catalogue.recipe(recipe)
    base = known if distill else catalogue.modified(known, assignments)
    chosen = catalogue.modified(scaling.distillation_of(base, distill), assignments) if distill else base
    batch = chosen.training.batch_size
    if devices < 1 or batch % devices:
        fitting = ", ".join(map(str, divisors(batch)))
        raise ValueError(f"--devices {devices}: a batch of {batch} can be divided over {fitting} devices")
    if not 0 < mfu <= 1:
        raise ValueError(f"--mfu {mfu}: it is a share of the peak, above 0 and at most 1")
    room = scaling.number_of(memory, "--memory", {"GB": 1e9, "GiB": 2.0**30, "MB": 1e6, "MiB": 2.0**20})
    best = None if peak is None else scaling.number_of(peak, "--peak", {"T": 1e12, "G": 1e9, "P": 1e15})
    where = torch.device(kind)
    sizes = scaling.sizes_of(chosen, where)
    rows = list(scaling.fits(chosen, sizes, devices, room, where))
    speed = None if best is None else scaling.speed_of(chosen, sizes, devices, best * mfu)
    least = scaling.smallest(chosen, sizes, room, where)
    if json:
        print(json_text(as_json(chosen, sizes, rows, room, speed, least)))
    else:
        show(chosen, sizes, rows, room, speed, least)
    return 0


def as_json(
    recipe: Recipe, sizes: Sizes, rows: list[Fit], room: float, speed: Speed | None, least: Fit | None
) -> dict[str, object]:
    """Everything as one JSON object."""
    from dataclasses import asdict

    from duality.models.plan import within

    found = [{**asdict(row), "memory": row.memory, "fits": within(row, room)} for row in rows]
    return {
        "recipe": recipe.name,
        "parameters": sizes.parameters,
        "trained": sizes.trained,
        "strategies": found,
        "speed": None if speed is None else asdict(speed),
        "smallest": None if least is None else {"devices": least.devices, "strategy": least.strategy},
    }


def show(recipe: Recipe, sizes: Sizes, rows: list[Fit], room: float, speed: Speed | None, least: Fit | None) -> None:
    """Print the table and what follows from it."""
    import sys

    from rich.console import Console
    from rich.table import Table

    from duality.models.plan import within

    training, length = recipe.training, recipe.data.length
    part = "" if sizes.trained == sizes.parameters else f", of which {sizes.trained / 1e6:,.2f} M are trained"
    print(
        f"{recipe.name}: {sizes.parameters / 1e6:,.1f} M parameters{part}, {training.steps:,} steps of "
        f"{training.batch_size} x {length:,} tokens, on {rows[0].devices} device(s) of {room / 1e9:,.1f} GB"
    )
    parts = ("state", "put together", "activations", "loss", "validation")
    table = Table("strategy", *parts, "GB in all", "fits", "rows x times", "sent", box=None)
    for row in rows:
        name = row.strategy if row.shard in (1, row.devices) else f"{row.strategy}, groups of {row.shard}"
        needs = (row.state, row.gathered, row.activations, row.loss, row.validation, row.memory)
        cells = [f"{size / 1e9:,.2f}" for size in needs]
        times = f"{row.micro_batch} x {row.accumulations}"
        table.add_row(name, *cells, "yes" if within(row, room) else "no", times, f"{row.sent / 1e9:,.2f} GB")
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if speed is not None:
        print(
            f"{speed.tokens_per_second:,.0f} tokens per second, {speed.step_seconds:.3g} s a step, "
            f"{speed.days:,.2f} days ({speed.operations / 1e9:,.2f} G operations for each token)"
        )
    if least is None:
        print("it fits on no number of such devices: take a smaller backbone, or --set training.recompute=true")
    else:
        print(f"the smallest number of such devices is {least.devices} ({least.strategy})")
