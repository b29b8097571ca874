"""Processes that train in a run folder, or take its lock, while a test looks at it."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from support import session
from support.runs import ROOT, quiet, small_recipe

from duality.files import lock
from duality.training.loop import StepRecord

STEPS, PAUSE = 20, 7
REFUSED = 2


def context() -> ForkServerContext:
    """Processes that start with this module imported."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["support.lock_holders"])
    return made


def started(target: Callable[..., Any], *arguments: object) -> ForkServerProcess:
    process = context().Process(target=target, args=arguments)
    process.start()
    return process


def wait_for(path: Path, seconds: float = 60) -> None:
    """Return when ``path`` exists."""
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} was not made"
        time.sleep(0.01)


def train_and_pause(folder: str, reached: str, go_on: str) -> None:
    """Train; at step PAUSE make the file ``reached`` and wait for the file ``go_on``."""
    torch.set_num_threads(1)

    def watch(record: StepRecord) -> None:
        if record.step == PAUSE:
            Path(reached).touch()
            wait_for(Path(go_on), 120)

    try:
        session.train(small_recipe(ROOT / "LICENSE"), Path(folder), resume=True, report=quiet, watch=watch)
    except lock._RunLocked as error:
        print(error)
        os._exit(REFUSED)


def take_turns(folder: str, flock_works: bool, rounds: int) -> None:
    """Take the lock again and again; nobody else may be inside at the same time."""
    if not flock_works:
        vars(lock)["_flock"] = lambda descriptor: None
    done = 0
    while done < rounds:
        try:
            with lock.locked(Path(folder)):
                descriptor = os.open(Path(folder) / "inside", os.O_CREAT | os.O_EXCL)
                time.sleep(0.0005)
                os.close(descriptor)
                (Path(folder) / "inside").unlink()
                done += 1
        except lock._RunLocked:
            time.sleep(0.0003)
