"""What a sampling step costs beyond the network: time as a ratio, memory in beliefs.

    python benchmarks/sampling.py [--json] [--repeats 15] [--vocab 30522 50257] [--batch 8] [--length 128]

A *belief* is one float32 tensor of batch x length x states, the size of the network's own answer. For each vocabulary,
process and sampler:

- time: ``sampler.step`` over the bare forward (``denoiser.backbone``, output projection included), taken in turns in
  one process; the median of the ratios of neighbours, so that whatever else the machine does meets both;
- memory: the largest sum of what the allocator had given out and not got back during a step, as recorded by the
  profiler at every allocation, temporaries inside operators included. Weights and inputs were there before and do
  not count; the bare forward's own peak stands beside it.

The network is the "tiny" DiT with random weights; the step is the middle one of a 32-step linear grid, from a state
with half of the signal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would talk about itself

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from duality.backbones.dit import SIZES
from duality.denoiser import MeanDenoiser, ScoreDenoiser, SubsDenoiser, noise_level
from duality.generate import levels
from duality.noise import Noise
from duality.processes import Absorbing, Uniform
from duality.samplers import Analytic, Ancestral, Psi
from duality.schedules import LogLinear

STEPS = 32


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    states: int
    process: str
    sampler: str
    forward_seconds: float
    step_ratio: float
    ratio_quartiles: tuple[float, float]
    forward_beliefs: float
    step_beliefs: float


def network(process: Uniform | Absorbing) -> MeanDenoiser | SubsDenoiser:
    """Random weights everywhere: an untrained head is zero, and all its beliefs alike."""
    torch.manual_seed(0)
    backbone = SIZES["tiny"].build(process.vocab_size)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    backbone.requires_grad_(False)
    return SubsDenoiser(backbone, process) if isinstance(process, Absorbing) else MeanDenoiser(backbone)


def peak_bytes(call: Callable[[], Tensor]) -> int:
    """The largest sum of live allocations made by the call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    results: Any = record.profiler.kineto_results  # type: ignore[union-attr]
    live = peak = 0
    for event in sorted((each for each in results.events() if each.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def seconds(call: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@torch.no_grad()
def measure(process: Uniform | Absorbing, batch: int, length: int, repeats: int) -> list[Row]:
    """All samplers on one network."""
    denoiser = network(process)
    noise = Noise.of(0, 0, torch.arange(batch))
    grid = levels(LogLinear(), STEPS)
    alpha_t, alpha_s = (grid[step].expand(batch) for step in (STEPS // 2 - 1, STEPS // 2))
    clean = noise.integers("clean", process.vocab_size - 1, length)
    z = process.corrupt(clean, alpha_t, noise.fold("corrupt"))
    belief = batch * length * process.vocab_size * 4

    def forward() -> Tensor:
        logits: Tensor = denoiser.backbone(z, noise_level(alpha_t))
        return logits

    steps: dict[str, Callable[[], Tensor]] = {
        type(sampler).__name__: lambda sampler=sampler: sampler.step(denoiser, z, alpha_t, alpha_s, noise)
        for sampler in (Ancestral(process), Psi(process))
    }
    score = ScoreDenoiser(denoiser.backbone, process)
    steps["Analytic"] = lambda: Analytic(process).step(score, z, alpha_t, alpha_s, noise)
    taken: dict[str, list[float]] = {name: [] for name in ("forward", *steps)}
    for repeat in range(-1, repeats):
        for name, call in (("forward", forward), *steps.items()):
            spent = seconds(call)
            if repeat >= 0:
                taken[name].append(spent)
    rows = []
    for name, call in steps.items():
        ratios = [step / bare for step, bare in zip(taken[name], taken["forward"])]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append(
            Row(
                process.vocab_size,
                type(process).__name__.lower(),
                name.lower(),
                round(statistics.median(taken["forward"]), 4),
                round(middle, 3),
                (round(low, 3), round(high, 3)),
                round(peak_bytes(forward) / belief, 3),
                round(peak_bytes(call) / belief, 3),
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="What a sampling step costs beyond the network.")
    parser.add_argument("--vocab", type=int, nargs="+", default=[30522, 50257], help="numbers of tokens")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    if not options.json:
        print(f"batch {options.batch} x {options.length}, {torch.get_num_threads()} threads, {options.repeats} repeats")
        print("states  process    sampler    forward s   step/forward (quartiles)   beliefs: forward  step")
    for tokens in options.vocab:
        for process in (Uniform(tokens), Absorbing(tokens + 1)):
            for row in measure(process, options.batch, options.length, options.repeats):
                if options.json:
                    print(json.dumps(asdict(row)), flush=True)
                    continue
                low, high = row.ratio_quartiles
                print(
                    f"{row.states:<7} {row.process:<10} {row.sampler:<10} {row.forward_seconds:<11.3f} "
                    f"{row.step_ratio:<6.3f} ({low:.3f} to {high:.3f})     {row.forward_beliefs:>12.3f}  "
                    f"{row.step_beliefs:>6.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
