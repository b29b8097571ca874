"""Processes against threads, and the pause of a checkpoint: `python -m benchmarks.scale`.

    two processes of one thread (ddp, gloo) against one process of two threads, at the same global batch
    the module that is wrapped (``Step``) against calling the objective
    a checkpoint written at once against one written in a thread, by one process and in parts by two

Every figure is a ratio of times that were taken in turn, round after round, in the same minutes; the median of the
rounds, and their range. Absolute times depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.jobs import MEDIUM, output_of, started, written_text
from duality import ranks
from duality.noise import Noise, stratified_times
from duality.recipes.catalogue import recipe
from duality.recipes.recipe import Recipe
from duality.training import checkpoint

MODELS = {"duo-laptop": (), "30 M": MEDIUM}
STEPS = {"duo-laptop": 12, "30 M": 4}


def chosen(model: str, corpus: Path) -> Recipe:
    """The recipe of a model on a corpus."""
    return recipe("duo-laptop", (f"data.corpus={corpus}", *MODELS[model]))


def rate(model: str, corpus: Path) -> None:
    """What a process of a job does: print the tokens per second of the whole job."""
    with ranks.join_job() as place:
        training = started(chosen(model, corpus), place)
        for _ in range(2):
            training.step()
        place.largest(0)
        start, tokens = time.perf_counter(), 0
        for _ in range(STEPS[model]):
            tokens += training.step().num_tokens
        place.largest(0)
        print(json.dumps(tokens / (time.perf_counter() - start)))


def measured(model: str, corpus: Path, processes: int, threads: int) -> float:
    """Tokens per second of a job."""
    flags = ["--model", model, "--corpus", str(corpus)]
    return float(json.loads(output_of("benchmarks.scale", flags, processes, threads)))


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
    made = started(chosen("duo-laptop", corpus), ranks.ALONE)
    state, objective = made.state, made.phases[-1].objective
    batch, training = made.batches.batch(0), made.recipe.training
    times = stratified_times(training.seed, 0, training.batch_size)
    noise = Noise.of(training.seed, 0, torch.arange(training.batch_size))

    def through_module() -> None:
        total, _ = state.loss(objective, batch.ids, times, noise)
        torch.autograd.backward(total)

    def direct() -> None:
        loss = objective(state.model, batch.ids, times, noise, None, dropout=True)
        torch.autograd.backward(loss.total)

    for work in (through_module, direct):
        work()
    return ratios(lambda: timed(through_module), lambda: timed(direct), 5 * rounds)


def pauses(corpus: Path, rounds: int, folder: Path) -> tuple[list[float], float, float]:
    """How long training waits for a checkpoint in a thread over one at once; the medians of both in seconds."""
    groups = started(chosen("30 M", corpus), ranks.ALONE).state.groups()
    waits: list[tuple[float, float]] = []
    for number in range(1, rounds + 1):
        write = partial(checkpoint.save, folder / "thread", number, state={}, keep=1)
        with checkpoint.Saver() as saver:
            thread = timed(partial(saver.save, groups, write))
        waits.append((thread, timed(partial(checkpoint.save, folder / "once", number, groups, {}, 1))))
    return [first / second for first, second in waits], *(statistics.median(each) for each in zip(*waits))


def pauses_of_parts(corpus: Path, rounds: int, folder: Path) -> None:
    """What a process of a job does: the same for parts of a checkpoint that each rank writes."""
    with ranks.join_job() as place:
        training = started(recipe("duo-laptop", (f"data.corpus={corpus}", *MEDIUM, "parallel.strategy=fsdp")), place)
        training.step()
        groups, connection = training.state.groups(), place.saving
        waits: list[tuple[float, float]] = []
        for number in range(1, rounds + 1):

            def written(name: str, with_saver: bool, number: int = number) -> float:
                place.once(partial(checkpoint.begin, folder / name, number))
                write = partial(checkpoint.save_parts, folder / name, number, state={}, keep=1, connection=connection)
                with checkpoint.Saver() as saver:
                    wait = timed(partial(saver.save, groups, write) if with_saver else partial(write, groups))
                place.largest(0)
                return wait

            waits.append((written("thread", True), written("once", False)))
        print(json.dumps(waits))


def main() -> None:
    """Print all ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.parts is not None:
        pauses_of_parts(arguments.corpus, arguments.rounds, arguments.parts)
        return
    if arguments.model is not None:
        rate(arguments.model, arguments.corpus)
        return
    with tempfile.TemporaryDirectory() as folder:
        corpus = written_text(Path(folder))
        print("| | ratio | range |\n|---|---|---|", flush=True)
        for model in MODELS:
            processes, threads = (partial(measured, model, corpus, *each) for each in ((2, 1), (1, 2)))
            found = ratios(processes, threads, arguments.rounds)
            line(f"{model}: tokens per second, 2 processes x 1 thread over 1 x 2", found)
        line("time of a step through the module over a plain call", wrapper(corpus, arguments.rounds))
        waited, thread, at_once = pauses(corpus, arguments.rounds, Path(folder))
        line(f"pause of a checkpoint of 30 M, in a thread ({thread:.2f} s) over at once ({at_once:.2f} s)", waited)
        flags = ["--corpus", str(corpus), "--parts", str(Path(folder) / "parts"), "--rounds", str(arguments.rounds)]
        pairs = [tuple(pair) for pair in json.loads(output_of("benchmarks.scale", flags, 2, 1))]
        thread, at_once = (statistics.median(each) for each in zip(*pairs))
        name = f"the same in parts of 2 ranks, in a thread ({thread:.2f} s) over at once ({at_once:.2f} s)"
        line(name, [first / second for first, second in pairs])


if __name__ == "__main__":
    main()
