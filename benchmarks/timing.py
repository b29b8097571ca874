"""How a cost is measured: in turns with its baseline, as a ratio.

Seconds depend on the machine and on other programs that use it. So everything runs in turns with its baseline (the
bare network), and a ratio compares two neighbours in the same turn: other programs slow both of them. The median and
the quartiles of the ratios are reported, of wall time and of CPU time; CPU time does not count the time in which the
process waits for a core. The first turn is not counted.

Memory is the largest sum of live allocations during a call, as the profiler records it at every allocation,
temporaries inside operators included. Earlier allocations, such as weights, do not count; gradients of parameters,
which the call makes, do.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler prints messages

from torch.profiler import ProfilerActivity, profile

GaussianSchedule = Callable[[], float]


def nothing() -> None:
    """No preparation."""


@dataclass(frozen=True)
class Runner:
    """A function to measure. ``run`` keeps nothing: freeing its tensors is timed too. ``prepare`` is not timed."""

    name: str
    run: Callable[[], None]
    prepare: Callable[[], None] = nothing


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some values, and the values."""

    median: float
    low: float
    high: float
    values: tuple[float, ...]

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return Spread(values[0], values[0], values[0], tuple(values))
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high, tuple(values))


@dataclass(frozen=True)
class Times:
    """Seconds of one runner, turn by turn."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]


@dataclass(frozen=True)
class Timings:
    """The times of some turns; ``peaks`` in bytes, if memory was requested."""

    times: dict[str, Times]
    peaks: dict[str, int]

    def ratios(self, name: str, baseline: str) -> tuple[Spread, Spread]:
        """The ratios of wall and of CPU time, each of two neighbours."""
        one, other = self.times[name], self.times[baseline]
        return (
            Spread.of([a / b for a, b in zip(one.wall, other.wall, strict=True)]),
            # a call shorter than the resolution of the CPU clock has a CPU time of 0
            Spread.of([a / max(b, 1e-9) for a, b in zip(one.cpu, other.cpu, strict=True)]),
        )

    def seconds(self, name: str) -> float:
        """Median of the wall time."""
        return statistics.median(self.times[name].wall)


def take_turns(
    runners: Sequence[Runner],
    repeats: int,
    *,
    memory: bool = False,
    warm_up: bool = True,
    wall: GaussianSchedule = time.perf_counter,
    cpu: GaussianSchedule = time.process_time,
) -> Timings:
    """Every runner in order, ``repeats`` times, after a turn that is not timed, in which memory is measured.

    Without ``warm_up`` there is no such turn, for calls that take minutes.
    """
    if memory and not warm_up:
        raise ValueError("memory is measured in the turn that does not count: it needs warm_up")
    if len({runner.name for runner in runners}) < len(runners):
        raise ValueError(f"two runners of one name: {', '.join(runner.name for runner in runners)}")
    peaks: dict[str, int] = {}
    for runner in runners if warm_up else ():
        runner.prepare()
        if memory:
            peaks[runner.name] = peak_bytes(runner.run)
        else:
            runner.run()
    taken: dict[str, list[tuple[float, float]]] = {runner.name: [] for runner in runners}
    for _ in range(repeats):
        for runner in runners:
            runner.prepare()
            wall_start, cpu_start = wall(), cpu()
            runner.run()
            cpu_end, wall_end = cpu(), wall()
            taken[runner.name].append((wall_end - wall_start, cpu_end - cpu_start))
    times = {name: Times(tuple(a for a, _ in each), tuple(b for _, b in each)) for name, each in taken.items()}
    return Timings(times, peaks)


def peak_bytes(call: Callable[[], object]) -> int:
    """The largest sum of live allocations that the call makes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    results: Any = record.profiler.kineto_results
    live = peak = 0
    for event in sorted((each for each in results.events() if each.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
