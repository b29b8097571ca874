"""The operator T of the paper as a table: how much signal of a Gaussian diffusion is left in its argmax."""

from __future__ import annotations

from functools import lru_cache

import torch

from duality.diffusion.gaussian import level, level_slope


@lru_cache(64)
def operator_table(states: int, points: int = 201) -> dict[str, object]:
    """The signal of the Gaussian diffusion, the signal T of its argmax, and the slope of T."""
    gaussian = torch.linspace(0, 1, points, dtype=torch.float64)
    inside = gaussian[1:-1]
    mu = inside / (1 - inside**2).sqrt()
    slope = level_slope(mu, states) / (1 - inside**2) ** 1.5
    return {
        "states": states,
        "gaussian": [round(value, 6) for value in gaussian.tolist()],
        "discrete": [0.0, *(round(value, 6) for value in level(mu, states).tolist()), 1.0],
        "slope": [0.0, *(round(value, 6) for value in slope.tolist()), 0.0],
    }
