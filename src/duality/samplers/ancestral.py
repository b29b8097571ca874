"""Ancestral sampling: draw z_s from the posterior evaluated at the belief p (the paper's Eq. 5).

The posterior is a mixture of three routes (``functional.routes``): keep z, draw from p, draw from the prior. They are
taken in ``routing``. Works unchanged for uniform and absorbing noise, and for any process of the family.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from duality import functional, routing
from duality.functional import Routes
from duality.noise import Noise
from duality.protocols import Denoiser, Process


@dataclass(frozen=True)
class Ancestral:
    """One plug-in posterior step after another."""

    process: Process

    def routes(self, p_z: Tensor, prior_z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Routes:
        """The chances of a step's three routes."""
        return functional.routes(p_z, prior_z, alpha_t, alpha_s)

    def start(self, denoiser: Denoiser, length: int, steps: int, noise: Noise) -> Tensor:
        return routing.begin(self.process, denoiser, length, noise, "ancestral")

    def step(self, denoiser: Denoiser, state: Tensor, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Tensor:
        return routing.advance(self.process, self.routes, denoiser, state, alpha_t, alpha_s, noise)

    def last(self, denoiser: Denoiser, state: Tensor, alpha_t: Tensor, greedy: bool, noise: Noise) -> Tensor:
        return routing.finish(self.process, self.routes, denoiser, state, alpha_t, greedy, noise)

    def tokens(self, denoiser: Denoiser, state: Tensor) -> Tensor:
        return state

    def default_steps(self, length: int) -> int:
        return 32
