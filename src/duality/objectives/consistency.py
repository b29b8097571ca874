"""Discrete Consistency Distillation: the student at z_t learns the belief of its teacher at the cleaner z_s.

The two are neighbours on one deterministic trajectory, the argmax of alpha_tilde x + sigma_tilde eps with the same eps
at the Gaussian times t and s = max(t - delta, 0); ``gaussian.coupled_argmax`` draws the pair from three numbers per
token. Loss: the divergence between the two beliefs, summed over all positions (the paper's Eq. 23).

What must hold: the teacher never has a gradient or dropout; at delta = 0 a student equal to
its teacher has loss 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.conditioning import with_labels_of
from duality.diffusion import Divergence
from duality.diffusion.gaussian import coupled_argmax
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import Dual
from duality.fused.formulas import BeliefDivergence
from duality.fused.loss import fused_loss
from duality.noise import Noise
from duality.objectives.base import belief_in, dropout_of
from duality.protocols import AnyDenoiser, Loss, Valid


@dataclass(frozen=True)
class Consistency:
    """E_t of the divergence between the student at t and the teacher at t - ``delta``, both times of ``schedule``."""

    teacher: AnyDenoiser
    schedule: Dual
    delta: float
    divergence: Divergence = "kl-backward"

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        s = (t - self.delta).clamp_min(0.0)
        mu_t, mu_s = self.schedule.mu(t)[:, None], self.schedule.mu(s)[:, None]
        process = Uniform(self.schedule.vocab_size)
        z_t, z_s = coupled_argmax(x, mu_t, mu_s, process.vocab_size, noise)
        with torch.no_grad():
            teacher = with_labels_of(denoiser, self.teacher)
            target = belief_in(process, teacher, z_s, self.schedule.alpha(s), valid)
        belief = belief_in(process, denoiser, z_t, self.schedule.alpha(t), valid, dropout_of(noise, dropout))
        return fused_loss(belief, BeliefDivergence(target, self.divergence), valid)
