"""kill -9 at random moments: what is on the disk is whole, and the next attempt ends as if nothing had happened.

    python tests/kill_points.py 1200        a sixth of the kills for each of these

    training        at most the steps since the last checkpoint are lost; the end is equal, bit for bit
    distillation    the same, with the weights of every round
    two at once     two trainings in one folder, one of which is killed: the other is refused, or goes on
    two ranks       one training in two processes, one of which is killed: the other ends by itself
    preparation     a corpus of the cache is absent or whole
    sampling        a file of ``--trace`` is absent or whole

Each point starts a real process that goes on where the killed ones stopped, kills it with SIGKILL after a random delay,
and inspects the folder. The test suite runs a few points.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import torch
from support import session
from support.checkpoints import load_newest
from support.jobs import free_port
from support.runs import ROOT, quiet, small_recipe

from duality.cli.main import main
from duality.data.corpus import _open_corpus, prepare
from duality.files.lock import LOCK, _RunLocked
from duality.models.folder import read_recipe
from duality.models.trace import read_trace
from duality.ranks import join_job
from duality.recipes.derive import derive_distillation
from duality.recipes.recipe import Recipe
from duality.tokenizers.specs import BPE
from duality.training import checkpoint
from duality.training.distillation import DCD
from duality.training.metrics import read_metrics

SAVE_EVERY = 3
STEPS = 30
PATIENCE = 6  # kills of one attempt before it may end
REFUSED = 3  # the exit code of a process that found the folder locked
LOST = 4  # that of a rank that has lost the other one


@dataclass
class Tally:
    """Counts of the kills, of the attempts that completed or were refused, and the most steps that were lost."""

    kills: int = 0
    completed: int = 0
    refused: int = 0
    most_lost: int = 0


def recipe() -> Recipe:
    return small_recipe(
        ROOT / "LICENSE", f"training.steps={STEPS}", f"training.save_every={SAVE_EVERY}", "training.eval_every=15"
    )


def distillation() -> Recipe:
    """Three rounds, with STEPS steps in all."""
    made = derive_distillation(recipe(), DCD(rounds=3, round_steps=STEPS // 3, delta=1 / 16), STEPS)
    return replace(made, training=replace(made.training, log_every=1))


# --- what the processes do that are killed: ``home`` is what all of them share, ``folder`` is where they write


def train(_home: Path, folder: Path) -> None:
    session.train(recipe(), folder, resume=True, report=quiet)


def distill(home: Path, folder: Path) -> None:
    session.distill(home / "base", distillation(), folder, resume=True, report=quiet)


def prepare_corpus(home: Path, folder: Path) -> None:
    prepare(home / "text.txt", BPE(300), cache=folder)


def sample(home: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    flags = ("--num", "64", "--steps", "8", "--length", "32", "--trace", str(folder / "trace.json"))
    with open(os.devnull, "w") as nowhere:
        sys.stdout = nowhere
        assert main(["sample", str(home / "base"), *flags]) == 0


# --- what must hold after a kill


def whole_run(folder: Path, tally: Tally) -> None:
    """Every visible checkpoint is intact, and no more than SAVE_EVERY logged steps are lost."""
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
    logged = max((row["step"] for row in read_metrics(folder)), default=0)
    lost = logged - (steps[-1] if steps else 0)
    tally.most_lost = max(tally.most_lost, lost)
    assert lost <= SAVE_EVERY, f"{lost} steps were lost"


def whole_stores(folder: Path, _tally: Tally) -> None:
    """What has the name of a store is one."""
    for store in (folder / "stores").glob("[!.]*"):
        corpus = _open_corpus(store)
        corpus.train.verify()
        corpus.validation.verify()


def whole_trace(folder: Path, _tally: Tally) -> None:
    """What has the name of the trace is one, with all samples."""
    if (folder / "trace.json").exists():
        assert len(read_trace(folder / "trace.json").samples) == 64


# --- what must hold at the end


def same_run(left: Path, right: Path) -> None:
    """The last checkpoints, and those of a distillation's rounds, are equal, bit for bit; nobody holds the lock."""
    ends = [load_newest(folder / "checkpoints", print) for folder in (left, right)]
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
    assert not (right / LOCK).exists()


def same_stores(left: Path, right: Path) -> None:
    """The stores are equal, file by file, and nothing half made is left."""
    found = [
        {path.relative_to(folder): path.read_bytes() for path in (folder / "stores").rglob("*.bin")}
        for folder in (left, right)
    ]
    assert found[0] == found[1]
    assert found[0]
    assert not [path for path in (right / "stores").iterdir() if path.name.startswith(".partial")]


def same_trace(left: Path, right: Path) -> None:
    """The traces are equal, and nothing else is in the folder."""
    assert read_trace(left / "trace.json") == read_trace(right / "trace.json")
    assert [path.name for path in right.iterdir()] == ["trace.json"]


@dataclass(frozen=True)
class Scenario:
    """What is killed, what must hold after a kill and at the end; how many processes are there at once, or as a job."""

    work: Callable[[Path, Path], None]
    inspect: Callable[[Path, Tally], None]
    same: Callable[[Path, Path], None]
    at_once: int = 1
    ranks: int = 1


SCENARIOS = {
    "training": Scenario(train, whole_run, same_run),
    "distillation": Scenario(distill, whole_run, same_run),
    "two at once": Scenario(train, whole_run, same_run, at_once=2),
    "two ranks": Scenario(train, whole_run, same_run, ranks=2),
    "preparation": Scenario(prepare_corpus, whole_stores, same_stores),
    "sampling": Scenario(sample, whole_trace, same_trace),
}


def child(work: Callable[[Path, Path], None], home: Path, folder: Path, place: dict[str, str]) -> None:
    """The process that is killed; ``place`` says which rank of a job it is."""
    torch.set_num_threads(1)
    os.environ.update(place)
    try:
        with join_job():
            work(home, folder)
    except _RunLocked:
        sys.exit(REFUSED)
    except RuntimeError:
        sys.exit(LOST if place else 1)


def kill_points(count: int, home: Path, name: str, seed: int = 0) -> Tally:
    """Kill ``count`` times, and count."""
    context, scenario = multiprocessing.get_context("forkserver"), SCENARIOS[name]
    context.set_forkserver_preload(["kill_points"])
    (home / "text.txt").write_text((ROOT / "LICENSE").read_text(encoding="utf-8") * 40, encoding="utf-8")
    if scenario.work in (distill, sample):
        start(context, train, home, home / "base").join()
    untouched = home / "untouched"
    ended(all_of(context, scenario, home, untouched))
    duration = untroubled(context, scenario, home, home / "timed")
    random_delay, tally, current, in_a_row = random.Random(seed), Tally(), 0, 0
    while tally.kills < count:
        target = home / f"attempt-{current}"
        processes = all_of(context, scenario, home, target)
        victim = processes[random_delay.randrange(scenario.ranks)]
        # other programs may slow it down at any time: after some kills without an end one process is left alone
        in_a_row += 1
        victim.join(None if in_a_row > PATIENCE else random_delay.uniform(0, duration))
        if victim.is_alive() and victim.pid is not None:
            os.kill(victim.pid, signal.SIGKILL)
            tally.kills += 1
            end_ranks([process for process in processes if process is not victim], scenario)
        codes = ended(processes)
        assert set(codes) <= {0, REFUSED, LOST, -signal.SIGKILL}, codes
        tally.refused += codes.count(REFUSED)
        scenario.inspect(target, tally)
        if 0 in codes and LOST not in codes and (scenario.ranks == 1 or set(codes) == {0}):
            scenario.same(untouched, target)
            tally.completed += 1
            current, in_a_row = current + 1, 0
    last = all_of(context, replace(scenario, at_once=1), home, home / f"attempt-{current}")
    assert set(ended(last)) == {0}
    scenario.same(untouched, home / f"attempt-{current}")
    tally.completed += 1
    return tally


def untroubled(context: ForkServerContext, scenario: Scenario, home: Path, folder: Path) -> float:
    """The seconds that the work takes in a new folder."""
    begin = time.monotonic()
    ended(all_of(context, replace(scenario, at_once=1), home, folder))
    return time.monotonic() - begin


def all_of(context: ForkServerContext, scenario: Scenario, home: Path, folder: Path) -> list[ForkServerProcess]:
    """The processes of a scenario, started: several that do not know each other, or the ranks of a job."""
    if scenario.ranks == 1:
        return [start(context, scenario.work, home, folder) for _ in range(scenario.at_once)]
    job = {"WORLD_SIZE": str(scenario.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        start(context, scenario.work, home, folder, {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(scenario.ranks)
    ]


def end_ranks(processes: list[ForkServerProcess], scenario: Scenario) -> None:
    """As torchrun does: ranks that do not end by themselves, such as those that wait for a dead one to join, are ended.

    A rank that is connected notices at once, and ends by itself.
    """
    for process in processes if scenario.ranks > 1 else ():
        process.join(5)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)


def ended(processes: list[ForkServerProcess]) -> list[int | None]:
    """The exit codes of processes, when all have ended."""
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def start(
    context: ForkServerContext,
    work: Callable[[Path, Path], None],
    home: Path,
    folder: Path,
    place: dict[str, str] | None = None,
) -> ForkServerProcess:
    process = context.Process(target=child, args=(work, home, folder, place or {}))
    process.start()
    return process


def run_all(count: int) -> None:
    """Kill ``count`` times in all, and print what was found; anything damaged or different is an error."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DUALITY_CACHE"] = f"{scratch}/cache"
        for number, name in enumerate(SCENARIOS):
            place = Path(scratch) / str(number)
            place.mkdir()
            print(f"{name}: {kill_points(-(-count // len(SCENARIOS)), place, name)}", flush=True)


if __name__ == "__main__":
    import kill_points as module  # by its name, so that the processes find what they are given

    module.run_all(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
