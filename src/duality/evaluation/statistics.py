"""Quantiles of the laws that 95 % intervals come from: the normal one, and Student's for few repetitions."""

from __future__ import annotations

import math

NORMAL = 1.96
_FEW = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # for 1 to 10 degrees of freedom


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
