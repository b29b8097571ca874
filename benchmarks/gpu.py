"""What a step costs on a GPU, counted without one: the table of docs/performance.md, and the lines that cost most.

    python -m benchmarks.gpu                        all steps at 64 x 1024 and K = 50 257, 170 M parameters
    python -m benchmarks.gpu duo --lines 40         the steps of one, and where their time goes
    python -m benchmarks.gpu duo --sampling         a step of its sampler, batch 16
    python -m benchmarks.gpu duo --set training.compile=false

``duality.models.roofline`` says what a time supposes. Nothing is measured here.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

from duality.models.cost import count_sampling, count_training
from duality.models.roofline import GPUS, Cost, Event, summarise
from duality.recipes.catalogue import recipe
from duality.recipes.derive import derive_distillation
from duality.recipes.recipe import Recipe

ROWS, SAMPLES = 64, 16
DEVICES = (GPUS["H100"], GPUS["A100"])
STEPS = {
    "duo": ("duo-owt", None),
    "mdlm": ("mdlm-owt", None),
    "ar": ("ar-owt", None),
    "sedd": ("sedd-absorb-owt", None),
    "dcd": ("duo-owt", "dcd"),
    "sdtt": ("mdlm-owt", "sdtt"),
}
SAMPLED = ("duo", "mdlm", "ar")


def chosen(name: str, assignments: tuple[str, ...] = ()) -> Recipe:
    """The paper's recipe of a name."""
    base, distillation = STEPS[name]
    found = recipe(base, assignments)
    return derive_distillation(found, distillation, found.training.steps) if distillation else found


def count(name: str, assignments: tuple[str, ...], sampling: bool) -> Iterator[tuple[str, Cost]]:
    """What a step is, and its cost."""
    if sampling:
        yield f"{name}, sampling, batch {SAMPLES}", count_sampling(chosen(name, assignments), SAMPLES)
        return
    for phase in count_training(chosen(name, assignments), ROWS):
        yield f"{name}, {phase.name}", phase.one


def show(cost: Cost, lines: int) -> None:
    """Where the time goes: by room, by line, and where the host waits."""

    def room(event: Event) -> str:
        return event.room + (" (products)" if event.operations else "")

    def line(event: Event) -> str:
        return f"{event.place} {event.name}"

    for group, most in ((room, 100), (line, lines)):
        print(f"\n{'':70s} kernels       GB  T operations  " + "  ".join(f"{gpu.name} ms" for gpu in DEVICES))
        for row in summarise(cost.events, group, DEVICES)[:most]:
            times = "  ".join(f"{1e3 * each:7.2f}" for each in row.seconds)
            print(f"{row.place:70.70s} {row.kernels:7d} {row.moved / 1e9:8.1f} {row.operations / 1e12:13.2f}  {times}")
    waits = Counter(f"{event.place} {event.name}" for event in cost.events if event.kind == "sync")
    print("\nthe host waits:", ", ".join(f"{times} x {place}" for place, times in waits.most_common()) or "never")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*STEPS, []], default=[])
    parser.add_argument("--sampling", action="store_true")
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    given = parser.parse_args()
    wanted = [(name, given.sampling) for name in given.names]
    wanted = wanted or [*((name, False) for name in STEPS), *((name, True) for name in SAMPLED)]
    print("| | kernels | host waits | GB | " + " | ".join(f"{gpu.name} ms" for gpu in DEVICES) + " |")
    print("|---|---|---|---|" + "---|" * len(DEVICES))
    for name, sampling in wanted:
        for title, cost in count(name, tuple(given.assignments), sampling):
            times = " | ".join(f"{1e3 * cost.seconds(gpu):.0f}" for gpu in DEVICES)
            numbers = f"{cost.num_kernels:,} | {cost.num_syncs} | {cost.moved / 1e9:,.0f} | {times}"
            print(f"| {title} | {numbers} |", flush=True)
            if given.lines:
                show(cost, given.lines)


if __name__ == "__main__":
    main()
