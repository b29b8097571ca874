"""The share of each kind of operator in the time of a step: Duo's step and the bare network's, by the profiler.

    python -m benchmarks.shares [--vocab 50257] [--repeats 3]

Profiling itself takes time, most of it where operators are small: these are shares, not speeds.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler prints messages

from torch.profiler import ProfilerActivity, profile

from benchmarks.models import FULL, Batch, bare_step, learning_step, network_of
from benchmarks.timing import Runner
from duality.methods.duo import Duo

KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm"),
    "attention": ("aten::_scaled_dot_product",),
    "GELU": ("aten::gelu",),
    "exponentials, logarithms": ("aten::exp", "aten::log"),
    "copying, clearing": ("aten::copy_", "aten::fill_", "aten::cat"),
    "other arithmetic": (
        "aten::mul",
        "aten::add",
        "aten::addcmul",
        "aten::sum",
        "aten::div",
        "aten::sub",
        "aten::amax",
    ),
    "the loss in Python": ("_Fused",),
}


def kind_of(operator: str) -> str:
    """The kind with the longest prefix of the operator's name: addmm is a product, not arithmetic."""
    found = [(len(start), kind) for kind, starts in KINDS.items() for start in starts if operator.startswith(start)]
    return max(found)[1] if found else "the rest"


def shares(runner: Runner, repeats: int) -> tuple[float, dict[str, float]]:
    """Seconds of a step, and the share of each kind of operator in it."""
    runner.prepare()
    runner.run()
    with profile(activities=[ProfilerActivity.CPU]) as record:
        for _ in range(repeats):
            runner.prepare()
            runner.run()
    spent: dict[str, float] = defaultdict(float)
    for event in record.key_averages():
        spent[kind_of(event.key)] += event.self_cpu_time_total / 1e6 / repeats
    total = sum(spent.values())
    return total, {kind: spent[kind] / total for kind in (*KINDS, "the rest")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time of a step goes.")
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    batch, method = Batch.of(FULL.size(options.vocab)), Duo()
    denoiser = network_of(method, FULL.backbone, options.vocab)
    objective = method.phases(options.vocab, 10)[-1].objective
    for runner in (bare_step(denoiser, batch), learning_step("Duo, bound", denoiser, objective, batch)):
        total, found = shares(runner, options.repeats)
        print(f"{runner.name}: {total:.2f} s")
        for kind, share in sorted(found.items(), key=lambda each: -each[1]):
            print(f"  {share:5.1%}  {kind}")


if __name__ == "__main__":
    main()
