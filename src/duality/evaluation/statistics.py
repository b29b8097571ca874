"""Means of samples with their 95 % intervals, and the quantiles that such intervals come from.

    bootstrap     of the sum of totals divided by the sum of counts, over resamples of the samples, with a fixed seed
    t_quantile    of Student's law, for few repetitions; ``NORMAL`` is that of the normal law

What must hold: an interval depends on the numbers and on the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from duality.noise import Noise

INTERVAL = (0.025, 0.975)
NORMAL = 1.96
_RESAMPLES = 1000
_FEW = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # for 1 to 10 degrees of freedom


@dataclass(frozen=True)
class Estimate:
    """A figure, its standard error, and its 95 % interval from ``low`` to ``high``; infinite where it is not known."""

    value: float
    stderr: float
    low: float
    high: float

    @property
    def spread(self) -> tuple[float, float, float] | tuple[None, None, None]:
        """Standard error, low and high; None without an interval, which takes two samples that have a number."""
        return (self.stderr, self.low, self.high) if math.isfinite(self.stderr) else (None, None, None)


def bootstrap(
    totals: Tensor, counts: Tensor, of: Callable[[Tensor], Tensor] = lambda mean: mean, seed: int = 0
) -> Estimate:
    """The figure ``of``(sum of totals / sum of counts) over samples (N,), with its error; ``of`` must be increasing.

    A sample with a count of 0 has no number of its own; a resample of such samples alone is left out.
    """
    totals, counts = totals.double(), counts.double()
    if not counts.sum() > 0:
        raise ValueError(f"none of {len(counts)} samples has a number: give at least one that has")
    value, size = float(of(totals.sum() / counts.sum())), len(totals)
    if int((counts > 0).sum()) < 2:
        return Estimate(value, math.inf, float(of(torch.tensor(-math.inf))), math.inf)
    noise = Noise.of(seed, 0, torch.arange(_RESAMPLES)).fold("bootstrap")
    chosen = noise.integers("samples", size, size)
    values = of(totals[chosen].sum(1) / counts[chosen].sum(1))
    values = values[~values.isnan()]
    low, high = values.quantile(torch.tensor(INTERVAL, dtype=torch.float64)).tolist()
    return Estimate(value, float(values.std()), low, high)


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: a table for few degrees of freedom, beyond it the series in 1 / degrees.

    >>> [round(t_quantile(degrees), 3) for degrees in (1, 9, 11, 19, 99)]
    [12.706, 2.262, 2.201, 2.093, 1.984]
    """
    if degrees <= len(_FEW):
        return _FEW[degrees - 1]
    z = 1.959963984540054
    terms: tuple[float, ...] = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / float(degrees) ** power for power, term in enumerate(terms))
