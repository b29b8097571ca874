"""Trainings in processes of their own, for measurements: a text, a training that can take steps, and its processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from duality import ranks
from duality.data.loader import Loader, Prefetch
from duality.protocols import Phase
from duality.recipes.corpus import make_sequences, prepare_corpus
from duality.recipes.derive import method_phases
from duality.recipes.recipe import Recipe
from duality.runs.start import make_state
from duality.training.loop import StepRecord, TrainState, take_step
from duality.training.settings import device_named

# The changes of duo-laptop that make a network of about 30 million parameters.
MEDIUM = ("backbone.width=512", "backbone.depth=8", "backbone.heads=8", "backbone.conv=0")


def written_text(folder: Path) -> Path:
    """A text to train on: the documentation, twice."""
    pages = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
    path = folder / "text.txt"
    path.write_text(" ".join(page.read_text(encoding="utf-8") for page in pages) * 2, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Started:
    """A training that can take steps; ``batches`` gives the rows of this rank."""

    recipe: Recipe
    state: TrainState
    batches: Prefetch
    phases: tuple[Phase, ...]

    def step(self) -> StepRecord:
        """Take a step."""
        return take_step(self.state, self.batches, self.phases, self.recipe.training)


def started(recipe: Recipe, place: ranks.Job) -> Started:
    """The beginning of a training on the CPU, as one rank of a job."""
    device, data = device_named("cpu"), place.in_turn(lambda: prepare_corpus(recipe))
    state = make_state(recipe, data, device)
    rows, training = make_sequences(recipe.data, data.train, data.tokenizer), recipe.training
    loader = Loader(rows, training.batch_size, training.seed)
    batches = Prefetch(partial(loader.batch, rows=place.share(training.batch_size)), training.steps)
    return Started(recipe, state, batches, method_phases(recipe, data.tokenizer.vocab_size, state.teacher))


def output_of(module: str, arguments: list[str], processes: int = 1, threads: int = 1) -> str:
    """What rank 0 of a job prints, whose processes run ``module`` with these arguments; the last line."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
    if processes > 1:
        shared |= {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=shared | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    outputs = [process.communicate()[0] for process in running]
    codes = [process.returncode for process in running]
    if any(codes):
        raise SystemExit(f"{module} {' '.join(arguments)} in {processes} process(es) ended with {codes}")
    return outputs[0].splitlines()[-1]
