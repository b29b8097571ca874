"""Processes against threads, and the pause of a checkpoint: `python -m benchmarks.scale`.

    two processes of one thread (ddp, gloo) against one process of two threads, at the same global batch
    the module that is wrapped (``Step``) against calling the objective
    a checkpoint written at once against one written in a thread

Every figure is a ratio of times that were taken in turn, round after round, in the same minutes; the median of the
rounds, and their range. Absolute times depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from duality import ranks
from duality.data.loader import Batch, Loader
from duality.noise import Noise, stratified_times
from duality.protocols import Phase
from duality.recipes.catalogue import recipe
from duality.recipes.recipe import Recipe
from duality.runs.corpora import prepared, sequences
from duality.runs.devices import device_named
from duality.runs.session import layout_for, phases_of, untrained
from duality.training import checkpoint, loop, saving
from duality.training.state import TrainState

MODELS = {
    "duo-laptop": (),
    "30 M": ("backbone.width=512", "backbone.depth=8", "backbone.heads=8", "backbone.conv=0"),
}
STEPS = {"duo-laptop": 12, "30 M": 4}


class Share:
    """The rows of a batch that are this rank's."""

    def __init__(self, loader: Loader, place: ranks.Job):
        self.loader, self.rows = loader, place.share(loader.batch_size)

    def batch(self, step: int) -> Batch:
        """The rows of a step."""
        return self.loader.batch(step, self.rows)


def chosen(model: str, corpus: Path) -> Recipe:
    """The recipe of a model on a corpus."""
    return recipe("duo-laptop", (f"data.corpus={corpus}", *MODELS[model]))


def ready(model: str, corpus: Path, place: ranks.Job) -> tuple[Recipe, TrainState, Share, tuple[Phase, ...]]:
    """A training that can take steps."""
    made, device = chosen(model, corpus), device_named("cpu")
    data = place.in_turn(lambda: prepared(made))
    state = untrained(made, data, device, layout_for(made, data, device))
    loader = Loader(sequences(made.data, data.train, data.tokenizer), made.training.batch_size, made.training.seed)
    return made, state, Share(loader, place), phases_of(made, data, state.teacher)


def rate(model: str, corpus: Path) -> None:
    """What a process of a job does: print the tokens per second of the whole job."""
    with ranks.joined() as place:
        made, state, rows, phases = ready(model, corpus, place)
        for _ in range(2):
            loop.take_step(state, rows, phases, made.training)  # type: ignore[arg-type]
        place.any(0)
        start, tokens = time.perf_counter(), 0
        for _ in range(STEPS[model]):
            tokens += loop.take_step(state, rows, phases, made.training).num_tokens  # type: ignore[arg-type]
        place.any(0)
        print(json.dumps(tokens / (time.perf_counter() - start)))


def measured(model: str, corpus: Path, processes: int, threads: int) -> float:
    """Tokens per second of a job."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
    if processes > 1:
        shared |= {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale", "--model", model, "--corpus", str(corpus)],
            env=shared | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{model} in {processes} process(es) ended with {[each.returncode for each in started]}")
    return float(json.loads(outputs[0].splitlines()[-1]))


def ratios(first: Callable[[], float], second: Callable[[], float], rounds: int) -> list[float]:
    """first / second, taken in turn."""
    return [first() / second() for _ in range(rounds)]


def line(name: str, values: Sequence[float]) -> None:
    """A row of the table."""
    print(f"| {name} | {statistics.median(values):.3f} | {min(values):.3f} to {max(values):.3f} |", flush=True)


def timed(work: Callable[[], object]) -> float:
    """The seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def wrapper(corpus: Path, rounds: int) -> list[float]:
    """The time of a step's loss and gradient through the module, over calling the objective."""
    made, state, rows, phases = ready("duo-laptop", corpus, ranks.ALONE)
    batch, training = rows.batch(0), made.training
    times = stratified_times(training.seed, 0, training.batch_size)
    noise = Noise.of(training.seed, 0, torch.arange(training.batch_size))

    def through_module() -> None:
        total, _ = state.loss(phases[-1].objective, batch.ids, times, noise)
        torch.autograd.backward(total)

    def direct() -> None:
        loss = phases[-1].objective(state.model, batch.ids, times, noise, None, dropout=True)
        torch.autograd.backward(loss.total)

    for work in (through_module, direct):
        work()
    return ratios(lambda: timed(through_module), lambda: timed(direct), 5 * rounds)


def pauses(corpus: Path, rounds: int, folder: Path) -> tuple[list[float], float, float]:
    """How long training waits for a checkpoint in a thread over one at once; the medians of both in seconds."""
    _, state, _, _ = ready("30 M", corpus, ranks.ALONE)
    groups = state.groups()
    waits: list[tuple[float, float]] = []
    for number in range(rounds):
        with saving.Saver() as saver:
            thread = timed(
                lambda saver=saver, number=number: saver.save(  # type: ignore[misc]
                    groups, lambda now: checkpoint.save(folder / "thread", number + 1, now, {}, 1)
                )
            )
        at_once = timed(lambda number=number: checkpoint.save(folder / "once", number + 1, groups, {}, 1))  # type: ignore[misc]
        waits.append((thread, at_once))
    return [first / second for first, second in waits], *(statistics.median(each) for each in zip(*waits))


def main() -> None:
    """Print all ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.model is not None:
        rate(arguments.model, arguments.corpus)
        return
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "text.txt"
        pages = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
        corpus.write_text(" ".join(page.read_text(encoding="utf-8") for page in pages) * 2, encoding="utf-8")
        print("| | ratio | range |\n|---|---|---|", flush=True)
        for model in MODELS:
            found = ratios(
                lambda model=model: measured(model, corpus, 2, 1),  # type: ignore[misc]
                lambda model=model: measured(model, corpus, 1, 2),  # type: ignore[misc]
                arguments.rounds,
            )
            line(f"{model}: tokens per second, 2 processes x 1 thread over 1 x 2", found)
        line("time of a step through the module over a plain call", wrapper(corpus, arguments.rounds))
        waited, thread, at_once = pauses(corpus, arguments.rounds, Path(folder))
        line(f"pause of a checkpoint of 30 M, in a thread ({thread:.2f} s) over at once ({at_once:.2f} s)", waited)


if __name__ == "__main__":
    main()
