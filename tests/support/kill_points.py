"""kill -9 at random moments: at most the steps since the last checkpoint are lost, and nothing is corrupt.

The test suite runs a few points; ``python -m support.kill_points 100`` in tests/ runs 100 points. Each point
starts a real process that trains (resuming what the killed ones left), kills it with SIGKILL after a random delay, and
inspects the folder. When a run completes, its final checkpoint is compared, bit for bit, with that of a run that was
not killed. With ``rivals`` several processes start in the same folder at once: one trains, the others are refused.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import torch
from support.runs import ROOT, quiet, small_recipe

from duality.recipes.recipe import Recipe, distilled
from duality.runs import session
from duality.runs.folder import read_recipe
from duality.runs.lock import RunLocked
from duality.runs.metrics import read_metrics
from duality.training import checkpoint
from duality.training.distillation import DCD

SAVE_EVERY = 3
STEPS = 30
REFUSED = 2


def recipe() -> Recipe:
    return small_recipe(
        ROOT / "LICENSE", f"training.steps={STEPS}", f"training.save_every={SAVE_EVERY}", "training.eval_every=15"
    )


def distillation() -> Recipe:
    """Three rounds, with STEPS steps in all."""
    made = distilled(recipe(), DCD(rounds=3, round_steps=STEPS // 3, delta=1 / 16), STEPS)
    return replace(made, training=replace(made.training, log_every=1))


def child(folder: str, base: str | None) -> None:
    """The process that is killed: a training, or the distillation of the run in ``base``."""
    torch.set_num_threads(1)
    try:
        if base is None:
            session.train(recipe(), Path(folder), resume=True, report=quiet)
        else:
            session.distill(Path(base), distillation(), Path(folder), resume=True, report=quiet)
    except RunLocked:
        os._exit(REFUSED)


@dataclass
class Tally:
    """Counts of kills, completed runs, refused processes, leftover files, and the most steps that were lost."""

    kills: int = 0
    completed: int = 0
    refused: int = 0
    hidden_leftovers: int = 0
    most_lost: int = 0


def inspect(folder: Path, tally: Tally) -> None:
    """After a kill: every visible checkpoint is intact, and no more than SAVE_EVERY logged steps are lost."""
    checkpoints = folder / "checkpoints"
    steps = checkpoint.steps_saved(checkpoints) if checkpoints.is_dir() else []
    for step in steps:
        problem = checkpoint.damage(checkpoints / f"step-{step:08d}")
        assert problem is None, f"step {step}: {problem}"
    rounds = folder / "rounds"
    for step in checkpoint.steps_saved(rounds) if rounds.is_dir() else []:
        assert checkpoint.damage(rounds / f"step-{step:08d}") is None
    if (folder / "recipe.json").exists():
        read_recipe(folder)
    tally.hidden_leftovers += len(list(checkpoints.glob(".writing-*"))) if checkpoints.is_dir() else 0
    logged = max((row["step"] for row in read_metrics(folder)), default=0)
    lost = logged - (steps[-1] if steps else 0)
    tally.most_lost = max(tally.most_lost, lost)
    assert lost <= SAVE_EVERY, f"{lost} steps were lost"


def same_end(left: Path, right: Path) -> None:
    """The last checkpoints, and those of a distillation's rounds, are equal, bit for bit."""
    ends = [checkpoint.load_newest(folder / "checkpoints", print) for folder in (left, right)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0].step == ends[1].step == STEPS
    for group, tensors in ends[0].groups.items():
        for name, value in tensors.items():
            assert torch.equal(value, ends[1].groups[group][name]), f"{group}.{name} differs"
    if (left / "rounds").is_dir():
        steps = checkpoint.steps_saved(left / "rounds")
        assert steps == checkpoint.steps_saved(right / "rounds") == [0, STEPS // 3, 2 * STEPS // 3, STEPS]
        for step in steps:
            one, other = (checkpoint.load(folder / "rounds" / f"step-{step:08d}") for folder in (left, right))
            assert all(torch.equal(value, other.groups["ema"][name]) for name, value in one.groups["ema"].items())


def kill_points(count: int, folder: Path, seed: int = 0, distill: bool = False, rivals: int = 1) -> Tally:
    """Kill ``count`` times, and count; each time ``rivals`` processes start in one folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.kill_points"])
    base = str(folder / "base") if distill else None
    if base is not None:
        start(context, folder / "base", None).join()
    untouched = folder / "untouched"
    begin = time.monotonic()
    start(context, untouched, base).join()
    duration = time.monotonic() - begin
    random_delay, tally, current = random.Random(seed), Tally(), 0
    while tally.kills < count:
        target = folder / f"run-{current}"
        processes = [start(context, target, base) for _ in range(rivals)]
        until = time.monotonic() + random_delay.uniform(0, 0.6 * duration)
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            process.kill()
            process.join()
        tally.refused += sum(process.exitcode == REFUSED for process in processes)
        if alive:
            tally.kills += 1
            inspect(target, tally)
            continue
        assert 0 in {process.exitcode for process in processes} <= {0, REFUSED}
        same_end(untouched, target)
        tally.completed += 1
        current += 1
    start(context, folder / f"run-{current}", base).join()
    same_end(untouched, folder / f"run-{current}")
    tally.completed += 1
    return tally


def start(context: ForkServerContext, folder: Path, base: str | None) -> ForkServerProcess:
    process = context.Process(target=child, args=(str(folder), base))
    process.start()
    return process


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DUALITY_CACHE"] = f"{scratch}/cache"
        for distill, rivals in ((False, 1), (True, 1), (False, 2), (True, 2)):
            place = Path(scratch) / f"{distill}-{rivals}"
            place.mkdir()
            found = kill_points(int(sys.argv[1]) if len(sys.argv) > 1 else 100, place, distill=distill, rivals=rivals)
            print("distillation" if distill else "training", f"{rivals} at once:", found)
