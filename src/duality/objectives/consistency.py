"""Discrete Consistency Distillation: the student at z_t learns the belief of its teacher at the cleaner z_s.

The two are neighbours on one deterministic trajectory, the argmax of alpha_tilde x + sigma_tilde eps with the same eps
at the Gaussian times t and s = max(t - delta, 0); ``gaussian.coupled_argmax`` draws the pair from three numbers per
token. Loss: the divergence between two beliefs about the clean token, summed over all positions.

A denoiser of uniform noise gives the cavity belief c: what all other positions say of a token. The noisy token z itself
says something too, and the bound and the sampler add it: the posterior is pi = c with ``posterior.log_evidence`` at z,
normalised. ``compare`` chooses what is compared:

    output      c of the student at z_t with c of the teacher at z_s: the paper's Eq. 23
    posterior   pi of the student at (z_t, alpha_t) with pi of the teacher at (z_s, alpha_s)

Consistency models of Gaussian diffusion compare posterior means, of which "posterior" is the translation. What is true
of a model that is calibrated (its c is exact), at kl-forward, whose least is at the mean of the targets of a z_t:

- "posterior", z_t drawn from z_s by the noise itself (a chain): the model stays. E[pi(z_s) | z_t] = pi(z_t), because
  then z_t says nothing of x that z_s does not say.
- "posterior", the pair of one trajectory, which is used here: it stays only nearly. A token that differs between z_s
  and z_t is clean at s, which z_s alone does not show; the mean of the targets has too much at z_t. The error is small
  where little noise is left, and larger than that of "output" in much noise.
- "output": it does not stay, whatever the pair. The mean of c(z_s) given z_t depends on z_t of the position itself: c
  takes in evidence that the sampler adds once more. This is large where little noise is left.

With kl-backward, whose least is at the geometric mean, neither stays: it is meant to prefer what all targets allow.
tests/objectives/test_posterior_distillation.py computes all of this exactly on a toy.

What must hold: the teacher never has a gradient or dropout; at delta = 0 a student equal to
its teacher has loss 0, whatever is compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.conditioning import with_labels_of
from duality.diffusion import Compare, Divergence
from duality.diffusion.gaussian import coupled_argmax
from duality.diffusion.posterior import log_evidence
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import Dual, check_dual
from duality.fused.formulas import BeliefDivergence, Formula, PosteriorDivergence
from duality.fused.loss import fused_loss
from duality.noise import Noise
from duality.objectives.base import belief_in, dropout_of
from duality.protocols import AnyDenoiser, Loss, Valid

_NEARLY_CLEAN = 1 - 2.0**-53


@dataclass(frozen=True)
class Consistency:
    """E_t of the divergence between the student at t and the teacher at t - ``delta``, both times of ``schedule``.

    ``compare`` says whether their outputs are compared, or their posteriors, which include the noisy tokens' evidence.
    """

    teacher: AnyDenoiser
    schedule: Dual
    delta: float
    divergence: Divergence = "kl-backward"
    compare: Compare = "output"

    def __post_init__(self) -> None:
        check_dual(self.schedule, "Consistency")

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        s = (t - self.delta).clamp_min(0.0)
        mu_t, mu_s = self.schedule.mu(t)[:, None], self.schedule.mu(s)[:, None]
        alpha_t, alpha_s = self.schedule.alpha(t), self.schedule.alpha(s)
        process = Uniform(self.schedule.vocab_size)
        z_t, z_s = coupled_argmax(x, mu_t, mu_s, process.vocab_size, noise)
        with torch.no_grad():
            teacher = with_labels_of(denoiser, self.teacher)
            target = belief_in(process, teacher, z_s, alpha_s, valid)
        belief = belief_in(process, denoiser, z_t, alpha_t, valid, dropout_of(noise, dropout))
        formula: Formula = BeliefDivergence(target, self.divergence)
        if self.compare == "posterior":
            of_z_t, of_z_s = _finite_evidence(process, z_t, alpha_t), _finite_evidence(process, z_s, alpha_s)
            formula = PosteriorDivergence(target, self.divergence, z_t, of_z_t, z_s, of_z_s)
        return fused_loss(belief, formula, valid)


def _finite_evidence(process: Uniform, z: Tensor, alpha: Tensor) -> Tensor:
    """The evidence (B, L) of tokens z (B, L) at levels (B,).

    A level that is 1, by rounding, counts as the largest float64 below 1. The posterior multiplies the odds of z by
    K 2^53 there, and not by infinity, with which kl-backward would be infinite.
    """
    return log_evidence(process.prior_of(z), alpha.clamp_max(_NEARLY_CLEAN)[:, None])
