"""Self-Distillation Through Time (Deschenaux & Gulcehre, 2024): one step of the student for several of its teacher.

Corrupt x to z_t with absorbing noise. The teacher samples ``num_steps`` steps of length ``delta`` from there. The
target of a position is the teacher's belief at the step in which the position was unmasked, or its last belief if the
position is still masked. The student must give it in one step, from z_t. Loss: the divergence of the two beliefs,
summed over the positions that are masked in z_t.

The teacher's steps are those of the method's own sampler, which also corrupts x: any absorbing model can be distilled.
What must hold: as for ``Consistency``; and with one teacher step the target is the teacher's belief at z_t.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.conditioning import with_labels_of
from duality.denoisers.memo import Recorded
from duality.diffusion import Divergence
from duality.fused.formulas import BeliefDivergence
from duality.fused.lazy import Belief
from duality.fused.loss import fused_loss
from duality.noise import Noise
from duality.objectives.base import belief_in, dropout_of, intersection
from duality.protocols import AnyDenoiser, Loss, Schedule, TokenSampler, Valid


@dataclass(frozen=True)
class ThroughTime:
    """E_t of the divergence between the student at z_t and its teacher in the steps from z_t."""

    teacher: AnyDenoiser
    sampler: TokenSampler
    schedule: Schedule
    delta: float
    num_steps: int = 2
    divergence: Divergence = "kl-backward"

    def __post_init__(self) -> None:
        if self.sampler.process.mask_id is None:
            raise ValueError(f"{self.sampler.process} has no mask token: ThroughTime needs absorbing noise")

    def is_masked(self, z: Tensor) -> Tensor:
        """Where z is the mask token."""
        return torch.eq(z, -1 if self.sampler.process.mask_id is None else self.sampler.process.mask_id)

    @torch.no_grad()
    def target(self, teacher: AnyDenoiser, z: Tensor, t: Tensor, noise: Noise, valid: Valid = None) -> Belief:
        """The teacher's beliefs, that of each position from the step in which it was unmasked."""
        recorded = Recorded(teacher, valid)
        state, target = z, None
        for step in range(self.num_steps):
            now, later = ((t - count * self.delta).clamp_min(0.0) for count in (step, step + 1))
            masked = self.is_masked(state)
            alpha_t, alpha_s = self.schedule.alpha(now), self.schedule.alpha(later)
            state = self.sampler.step(recorded, state, alpha_t, alpha_s, noise.fold(step))
            assert recorded.answer is not None
            target = recorded.answer if target is None else recorded.answer.where(masked, target)
        assert target is not None
        return target

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        alpha, teacher = self.schedule.alpha(t), with_labels_of(denoiser, self.teacher)
        z = self.sampler.corrupt(teacher, x, alpha, noise)
        target = self.target(teacher, z, t, noise.fold("teacher"), valid)
        belief = belief_in(self.sampler.process, denoiser, z, alpha, valid, dropout_of(noise, dropout))
        positions = intersection(self.is_masked(z), valid)
        return fused_loss(belief, BeliefDivergence(target, self.divergence), positions)
