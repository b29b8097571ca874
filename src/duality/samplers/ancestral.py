"""Ancestral sampling: draw z_s from the posterior evaluated at the belief p (the paper's Eq. 5).

The posterior is a mixture of three routes (``posterior.routes``): keep z, draw from p, draw from the prior. A route
is drawn in ``base``. It works for uniform and absorbing noise, and for any other process.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality.diffusion import posterior
from duality.diffusion.posterior import Routes
from duality.samplers.base import RouteSampler


@dataclass(frozen=True)
class Ancestral(RouteSampler):
    """Plug-in posterior steps."""

    def routes(self, p_z: Tensor, prior_z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Routes:
        """The probabilities of a step's three routes."""
        return posterior.routes(p_z, prior_z, alpha_t, alpha_s)
