"""Duo's curriculum: the bound at z = argmax w, with softmax(w / tau) as the network's input.

The network's input is a tempered softmax of the Gaussian latent, which keeps signal that the argmax loses: an easier
task, a lower variance, a biased loss (the paper's Eq. 20). As tau goes to 0 it becomes the bound itself, on the
schedule's range of alpha. The dense latent is never made (``gaussian.tempered_latents``); the number of entries kept is
the smallest whose expected left-out fraction of the softmax is at most ``tolerance``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from duality.diffusion import gaussian
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import Dual, check_dual
from duality.fused.formulas import UniformBound
from duality.fused.loss import fused_loss
from duality.noise import Noise
from duality.objectives.base import belief_in, dropout_of
from duality.protocols import AnyDenoiser, Loss, Valid


@dataclass(frozen=True)
class TemperedBound:
    """The bound on the range of alpha of ``schedule``, with inputs softmax(w / tau)."""

    schedule: Dual
    tau: float = 0.001
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        check_dual(self.schedule, "TemperedBound")
        if not self.tau > 0:
            raise ValueError(
                f"tau is {self.tau}: it must be positive; for tau = 0 use ContinuousTimeBound, which is its limit"
            )

    @cached_property
    def num_kept(self) -> int:
        """How many entries of the latent are kept besides the true token's."""
        mu_first, mu_last = self.schedule.mu(torch.tensor([0.0, 1.0])).tolist()
        return gaussian.kept_entries((mu_last, mu_first), self.tau, self.schedule.vocab_size, self.tolerance)

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        vocab_size = self.schedule.vocab_size
        mu = self.schedule.mu(t)
        alpha = gaussian.level(mu, vocab_size)
        soft, z = gaussian.tempered_latents(x, mu[:, None], self.tau, self.num_kept, vocab_size, noise)
        belief = belief_in(Uniform(vocab_size), denoiser, soft, alpha, valid, dropout_of(noise, dropout))
        slope = self.schedule.alpha_prime(t)[:, None]
        return fused_loss(belief, UniformBound(x, z, alpha[:, None], slope, vocab_size), valid)
