"""The GPU-days of the trainings of the paper's index, kept in gpu_days.json: counting the networks takes a minute.

    python -m duality.papers.duo.gpu_days      writes gpu_days.json again, after a recipe or the estimate has changed

A GPU-day is a day of one device. The numbers are days x devices of the command `duality plan` that the index names for
a training (``index.DEVICES``: 8 devices of 80 GB, 989 T operations per second at their peak, of which 40 % are
reached). They do not include evaluation and sampling.

What must hold: gpu_days.json is what ``_compute_days`` gives; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from duality.papers.duo.index import DEVICES, Training, trainings

_FILE = Path(__file__).with_name("gpu_days.json")


def read_days() -> dict[str, float]:
    """GPU-days by the command `duality plan`, from the file."""
    found: dict[str, float] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def sum_days(needed: Iterable[Training], days: dict[str, float]) -> float:
    """The GPU-days of all these trainings; one that is named twice is trained once."""
    return sum(days[plan] for plan in {each.folder: each.plan for each in needed}.values())


def _compute_days() -> dict[str, float]:
    """GPU-days by the command `duality plan`, computed as that command does."""
    import torch

    from duality.models import plan as scaling
    from duality.recipes import catalogue

    devices, peak, mfu = (float(text.rstrip("T")) for text in DEVICES.split()[1::2] if not text.endswith("GB"))
    sizes: dict[str, scaling.Sizes] = {}  # the number of steps does not change a network
    found = {}
    for command, training in sorted({each.plan: each for each in trainings()}.items()):
        recipe = catalogue.recipe(training.recipe, training.changes)
        if training.base:
            recipe = scaling.plan_distillation(recipe, training.distill)
        if training.recipe not in sizes:
            sizes[training.recipe] = scaling.count_sizes(recipe, torch.device("cuda"))
        speed = scaling.estimate_speed(recipe, sizes[training.recipe], int(devices), peak * 1e12 * mfu)
        found[command] = round(speed.days * devices, 3)
    return found


if __name__ == "__main__":
    _FILE.write_text(json.dumps(_compute_days(), indent=0) + "\n", encoding="utf-8")
