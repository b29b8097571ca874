"""Self-Distillation Through Time (Deschenaux & Gulcehre, 2024): one step of the student for several of its teacher.

Corrupt x to z_t with absorbing noise. The teacher samples ``num_steps`` steps of length ``delta`` from there. What it
believed of a position when it was shown, or last, if it is hidden still, is the target of that position; the student
has to say it at once, from z_t. Loss: the divergence of the two beliefs, summed over the positions hidden in z_t.

The teacher moves by the method's own sampler, so that any absorbing model can be distilled: ``corrupt`` and ``sampler``
are the method's. What must hold: as for ``Consistency``; and with one teacher step the target is the teacher at z_t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from duality.denoisers.conditioning import told_like
from duality.denoisers.memo import Recorded
from duality.diffusion.divergences import Divergence
from duality.diffusion.processes import Absorbing
from duality.fused.formulas import Gap
from duality.fused.lazy import Belief, belief_of
from duality.fused.loss import fused_loss
from duality.noise import Noise
from duality.objectives.base import both, dropout_of
from duality.protocols import Denoiser, Loss, Sampler, Schedule

Corrupt = Callable[[Any, Tensor, Tensor, Noise], Tensor]


@dataclass(frozen=True)
class ThroughTime:
    """E_t of the divergence between the student at z_t and what its teacher says on the way from there."""

    teacher: Denoiser
    process: Absorbing
    corrupt: Corrupt
    sampler: Sampler
    schedule: Schedule
    delta: float
    num_steps: int = 2
    kind: Divergence = "kl-backward"

    @torch.no_grad()
    def target(self, teacher: Denoiser, z: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None) -> Belief:
        """The teacher's beliefs, each position's from the step in which it was shown."""
        asked = Recorded(teacher, mask)
        state, target = z, None
        for step in range(self.num_steps):
            now, later = ((t - count * self.delta).clamp_min(0.0) for count in (step, step + 1))
            hidden = (state == self.process.mask_id).flatten().nonzero()[:, 0]
            alpha_t, alpha_s = self.schedule.alpha(now), self.schedule.alpha(later)
            state = self.sampler.step(asked, state, alpha_t, alpha_s, noise.fold(step))
            assert asked.answer is not None
            target = asked.answer if target is None else target.put(hidden, asked.answer.at(hidden))
        assert target is not None
        return target

    def __call__(
        self, denoiser: Denoiser, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss:
        alpha, teacher = self.schedule.alpha(t), told_like(denoiser, self.teacher)
        z = self.corrupt(teacher, x, alpha, noise)
        target = self.target(teacher, z, t, noise.fold("teacher"), mask)
        belief = belief_of(denoiser, z, alpha, mask, dropout_of(noise, dropout))
        return fused_loss(belief, Gap(target, self.kind), both(z == self.process.mask_id, mask))
