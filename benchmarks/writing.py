"""Seconds to write 8 x 128 tokens: AR with its cache, Duo and MDLM in 8 steps: `python -m benchmarks.writing`.

Networks of `duo-laptop` with random weights, in turn, medians of five rounds; the number of threads is that of
OMP_NUM_THREADS. The ratio to AR is what counts: seconds depend on what else the machine does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from duality.models.sampling import with_memo
from duality.protocols import Vocabulary
from duality.recipes.catalogue import recipe
from duality.samplers.generate import generate

NAMES = ("ar-laptop", "duo-laptop", "mdlm-laptop")
NUM, LENGTH, STEPS, ROUNDS = 8, 128, 8, 5


def writer(name: str, vocabulary: int) -> Callable[[], torch.Tensor]:
    """A function that writes the sequences with a model of random weights."""
    chosen = recipe(name)
    model = chosen.method.network(chosen.backbone, Vocabulary(vocabulary)).requires_grad_(False)
    torch.manual_seed(0)
    for value in model.parameters():
        value.normal_(0, 0.05)
    sampler = chosen.method.sampler(vocabulary)
    return partial(
        generate,
        with_memo(model),
        chosen.method.sampling_schedule(),
        sampler,
        num=NUM,
        length=LENGTH,
        steps=sampler.steps(LENGTH, STEPS),
        batch_size=NUM,
    )


def main() -> None:
    """Print a row for each vocabulary."""
    print(f"| K | threads | {' | '.join(f'{name}, s' for name in NAMES)} | Duo / AR | MDLM / AR |")
    print("|---" * (len(NAMES) + 4) + "|")
    for vocabulary in (2048, 30522):
        writers = {name: writer(name, vocabulary) for name in NAMES}
        taken: dict[str, list[float]] = {name: [] for name in NAMES}
        for _ in range(ROUNDS + 1):
            for name, write in writers.items():
                start = time.perf_counter()
                write()
                taken[name].append(time.perf_counter() - start)
        autoregressive, duo, masked = (statistics.median(taken[name][1:]) for name in NAMES)  # the first warms up
        cells = " | ".join(f"{value:.2f}" for value in (autoregressive, duo, masked))
        ratios = f"{duo / autoregressive:.2f} | {masked / autoregressive:.2f}"
        print(f"| {vocabulary} | {torch.get_num_threads()} | {cells} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
