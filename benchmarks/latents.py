"""The Gaussian side of Duo: noise and T per step against the vocabulary, T for a new vocabulary, and T's error.

Per step, the curriculum needs mu, T, its slope and the tempered latents, distillation a pair of coupled argmaxes.
Neither makes a K-vector, so the cost of neither should grow with K.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import mpmath
import torch

from benchmarks.models import Batch, Scale
from benchmarks.rows import Report, Row, Size, spaced, time_row
from benchmarks.timing import Runner, Spread, take_turns
from duality.diffusion import gaussian
from duality.diffusion.schedules import Dual
from duality.methods.duo import Duo
from duality.objectives.curriculum import TemperedBound
from duality.training.distillation import DCD

GROWTH_BAR = 1.5
NEW_BAR = 0.5
ERROR_BAR = 1e-12
TURNS = 4  # turns per repeat of other sections: these calls take milliseconds
POINTS = ((0.5, 27), (3.0, 27), (2.5, 30_522), (4.0, 30_522), (3.0, 256_000), (5.5, 256_000))


def tempered(states: int) -> TemperedBound:
    """The curriculum's objective at a vocabulary."""
    objective = Duo().phases(states, 2)[0].objective
    assert isinstance(objective, TemperedBound)
    return objective


def curriculum_noise(states: int, size: Size) -> Callable[[], None]:
    """The part of a curriculum step before the network call."""
    batch, objective = Batch.of(Size(states, size.batch, size.length)), tempered(states)
    schedule, tau, kept = objective.schedule, objective.tau, objective.num_kept

    def run() -> None:
        mu = schedule.mu(batch.t)
        gaussian.level(mu, states)
        gaussian.tempered_latents(batch.x, mu[:, None], tau, kept, states, batch.noise)
        schedule.alpha_prime(batch.t)

    return run


def coupled_noise(states: int, size: Size) -> Callable[[], None]:
    """The part of a distillation step before the network call."""
    batch, kind = Batch.of(Size(states, size.batch, size.length)), DCD()
    schedule = Dual(states, kind.gaussian_schedule, kind.alpha_min, kind.alpha_max)
    s = (batch.t - kind.delta).clamp_min(0.0)

    def run() -> None:
        mu_t, mu_s = schedule.mu(batch.t)[:, None], schedule.mu(s)[:, None]
        gaussian.coupled_argmax(batch.x, mu_t, mu_s, states, batch.noise)
        schedule.alpha(batch.t), schedule.alpha(s)

    return run


def growth(scale: Scale, report: Report) -> Iterator[Row]:
    """Noise and T per step at every vocabulary, over those at the smallest."""
    kinds = {"curriculum: T, latents": curriculum_noise, "distillation: T, pairs": coupled_noise}
    for name, kind in kinds.items():
        report(name)
        first, *larger = scale.growth_states
        runners = [Runner(str(states), kind(states, scale.size(states))) for states in scale.growth_states]
        timings = take_turns(runners, TURNS * scale.repeats)
        for states in larger:
            bar = GROWTH_BAR if states == larger[-1] else None
            size = scale.size(states)
            row = time_row("noise and T", timings, str(states), str(first), f"K = {spaced(first)}", size, bar)
            yield replace(row, name=name)


def seconds_to_ready(states: int) -> float:
    """The time to build a schedule, to evaluate it at 512 times and to compute the number of kept entries."""
    start = time.perf_counter()
    objective, t = tempered(states), torch.linspace(0, 1, 512, dtype=torch.float64)
    objective.schedule.alpha(t), objective.schedule.alpha_prime(t), objective.num_kept
    return time.perf_counter() - start


def exact_level(mu: float, states: int) -> float:
    """T by adaptive quadrature with 30 digits."""
    with mpmath.workdps(30):
        point = mpmath.mpf(mu)

        def integrand(u: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(u) * mpmath.ncdf(point + u) ** (states - 1)

        hit = mpmath.quad(integrand, [-14, -6, -4, -2, 0, 1, 2, 3, 4, 5, 6, 8, 14])
        return float((states * hit - 1) / (states - 1))


def new_vocabularies(scale: Scale, report: Report) -> Iterator[Row]:
    """T for vocabularies that are new to this process, as values are cached by K."""
    report("T for a new vocabulary")
    for states in (scale.growth_states[0], scale.growth_states[-1]):
        unseen = [states + 1 + number for number in range(scale.repeats)]
        value = Spread.of([seconds_to_ready(each) for each in unseen])
        yield Row("T", "T ready for a new K", "", Size(unseen[0]), value, "s", bar=NEW_BAR)


def errors(report: Report) -> Iterator[Row]:
    """T's largest error at some points."""
    report("T against quadrature with 30 digits")
    for states in sorted({states for _, states in POINTS}):
        found = [
            abs(gaussian.level(torch.tensor(mu, dtype=torch.float64), states).item() - exact_level(mu, states))
            for mu, each in POINTS
            if each == states
        ]
        largest = max(found)
        yield Row("T", "largest error of T", "mpmath", Size(states), Spread.of([largest]), "", bar=ERROR_BAR)


def section(scale: Scale, report: Report) -> Iterator[Row]:
    yield from growth(scale, report)
    yield from new_vocabularies(scale, report)
    yield from errors(report)
