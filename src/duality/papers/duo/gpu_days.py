"""The GPU-days of the trainings of the paper's index, kept in gpu_days.json: counting the networks takes a minute.

    python -m duality.papers.duo.gpu_days      writes gpu_days.json again, after a recipe or the estimate has changed

A GPU-day is a day of one device. The numbers are days x devices of the command `duality plan` that the index names for
a training (``index.DEVICES``: 8 devices of 80 GB, 989 T operations per second at their peak, of which 40 % are
reached). They do not include evaluation and sampling.

What must hold: gpu_days.json is what ``compute_days`` gives; a test compares them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

from duality.papers.duo.index import Training, trainings

_FILE = Path(__file__).with_name("gpu_days.json")


def read_days() -> dict[str, float]:
    """GPU-days by the command `duality plan`, from the file."""
    found: dict[str, float] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def sum_days(needed: Iterable[Training], days: dict[str, float]) -> float:
    """The GPU-days of all these trainings; one that is named twice is trained once."""
    return sum(days[plan] for plan in {each.folder: each.plan for each in needed}.values())


def compute_days(plans: Iterable[str]) -> dict[str, float]:
    """GPU-days by the command `duality plan`, computed as that command does."""
    import torch

    from duality.models import plan as scaling
    from duality.recipes import catalogue

    known: dict[str, scaling.Sizes] = {}  # the number of steps does not change a network
    found = {}
    for plan in plans:
        _, _, name, *options = shlex.split(plan)
        changes = tuple(options[options.index("--set") + 1 :]) if "--set" in options else ()
        recipe = catalogue.recipe(name, changes)
        if "--distill" in options:
            recipe = scaling.distillation_of(recipe, options[options.index("--distill") + 1])
        value = {key: options[options.index(key) + 1] for key in ("--devices", "--peak", "--mfu")}
        peak = scaling.number_of(value["--peak"], "--peak", {"T": 1e12})
        if name not in known:
            known[name] = scaling.sizes_of(recipe, torch.device("cuda"))
        speed = scaling.speed_of(recipe, known[name], int(value["--devices"]), peak * float(value["--mfu"]))
        found[plan] = round(speed.days * int(value["--devices"]), 3)
    return found


if __name__ == "__main__":
    text = json.dumps(compute_days(sorted({each.plan for each in trainings()})), indent=0)
    _FILE.write_text(text + "\n", encoding="utf-8")
