"""D3PM: the bound of a chain with T steps, a sum of divergences between two posteriors, for any process.

    sum over i = 2 .. T of KL(q(z_s | z_t, x) || q(z_s | z_t, p)) - log p(x | z_{1/T}) + KL(q(z_1 | x) || prior)

with t = i/T, s = (i-1)/T. The reconstruction is the divergence at i = 1, where alpha_s = 1: training draws i from
1 .. T and multiplies by T. Evaluation draws from 2 .. T and reports the reconstruction on its own (``separate``). As T
grows the bound falls to the continuous-time bound as 1/T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.fused.lazy import Belief
from duality.fused.loss import fused_loss
from duality.fused.process_formulas import formulas_of
from duality.noise import Noise
from duality.objectives.base import belief_in, dropout_of, end_terms, intersection, loss_of_nats
from duality.protocols import AnyDenoiser, Ends, Kind, Loss, Process, Schedule, Valid


@dataclass(frozen=True)
class DiscreteTimeBound:
    """The T-step bound, T being ``num_steps``; with ``separate``, the reconstruction is one of the ends."""

    process: Process
    schedule: Schedule
    num_steps: int = 1000
    separate: bool = False
    kind: Kind = "bound"

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps (T) is {self.num_steps}: the chain needs at least 1 step; the usual is 1000")

    def level(self, step: Tensor) -> Tensor:
        """alpha after ``step`` of T steps; step 0 is clean for every schedule."""
        return torch.where(step == 0, 1.0, self.schedule.alpha(step / self.num_steps))

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        first = 2 if self.separate else 1
        count = self.num_steps + 1 - first
        if not count:  # T = 1: the reconstruction is the whole bound
            return loss_of_nats(torch.zeros(x.shape, dtype=torch.float64, device=x.device), valid)
        step = first + (t.double() * count).long().clamp_max(count - 1)
        alpha_t, alpha_s = self.level(step), self.level(step - 1)
        z = self.process.corrupt(x, alpha_t, noise)
        belief = belief_in(self.process, denoiser, z, alpha_t, valid, dropout_of(noise, dropout))
        return self.divergence(belief, x, z, alpha_t[:, None], alpha_s[:, None], count, valid)

    def divergence(
        self, belief: Belief, x: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, count: int, valid: Valid
    ) -> Loss:
        """``count`` times the KL between the posteriors given x and given the belief."""
        formulas = formulas_of(self.process)
        formula = formulas.divergence(x, z, alpha_t, alpha_s, count)
        return fused_loss(belief, formula, intersection(formulas.loss_positions(z), valid))

    def ends(self, denoiser: AnyDenoiser, x: Tensor, noise: Noise, valid: Valid = None) -> Ends:
        ends = end_terms(self.process, self.schedule, x, noise, lambda z, alpha: torch.zeros(x.shape, device=x.device))
        if not self.separate:
            return ends
        alpha = self.level(torch.ones(len(x), dtype=torch.int64, device=x.device))
        z = self.process.corrupt(x, alpha, noise.fold("reconstruction"))
        belief, one = belief_in(self.process, denoiser, z, alpha, valid), torch.ones_like(alpha)[:, None]
        return Ends(ends.prior, self.divergence(belief, x, z, alpha[:, None], one, 1, valid).nats)
