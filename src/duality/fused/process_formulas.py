"""Which formulas a process trains with: closed forms where it has them, the general ones otherwise.

A process is free to be anything with a prior. The general formulas need nothing else: they compute the bound of
``diffusion.closed_forms.bound`` and the divergence of two posteriors with K-vectors, a few rows at a time, and
autograd differentiates them. A closed form is a speed-up that belongs to one kind of process:

    CLOSED_FORMS[Uniform] = UniformFormulas

What must hold: for every process, closed form = general form (tests/fused/test_process_formulas.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from duality.diffusion import closed_forms, posterior
from duality.diffusion.processes import Absorbing, GaussianUniform, Uniform, prior_on
from duality.fused.formulas import (
    AbsorbingScoreEntropy,
    Backward,
    CrossEntropy,
    Formula,
    UniformBound,
    UniformDivergence,
    UniformScoreEntropy,
)
from duality.protocols import Process


class _ProcessFormulas(Protocol):
    """The three losses of a process, and the positions (B, L) where they are not 0 from the start; None: all.

    ``bound`` and ``divergence`` read the logits of a belief, ``score_entropy`` log ratios. Levels are (B, 1).
    """

    def bound(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Formula: ...
    def divergence(self, x: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, scale: float) -> Formula: ...
    def score_entropy(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Formula: ...
    def loss_positions(self, z: Tensor) -> Tensor | None: ...


@dataclass(frozen=True)
class _UniformFormulas:
    """One reduction over the vocabulary (Duo, UDLM, D3PM, SEDD)."""

    process: Uniform

    def bound(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> UniformBound:
        return UniformBound(x, z, alpha, alpha_prime, self.process.vocab_size)

    def divergence(self, x: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, scale: float) -> UniformDivergence:
        return UniformDivergence(x, z, alpha_t, alpha_s, self.process.vocab_size, scale)

    def score_entropy(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> UniformScoreEntropy:
        return UniformScoreEntropy(x, z, alpha, alpha_prime, self.process.vocab_size)

    def loss_positions(self, z: Tensor) -> None:
        return None


@dataclass(frozen=True)
class _AbsorbingFormulas:
    """Weighted cross-entropy of the masked positions (MDLM, D3PM); the score entropy of SEDD."""

    process: Absorbing

    def bound(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> CrossEntropy:
        return CrossEntropy(x, closed_forms.absorbing_weight(alpha, alpha_prime))

    def divergence(self, x: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, scale: float) -> CrossEntropy:
        return CrossEntropy(x, scale * closed_forms.shown_chance(alpha_t, alpha_s))

    def score_entropy(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> AbsorbingScoreEntropy:
        return AbsorbingScoreEntropy(x, alpha, alpha_prime)

    def loss_positions(self, z: Tensor) -> Tensor:
        return z == self.process.mask_id


@dataclass(frozen=True)
class _DenseFormula(Formula):
    """A formula that autograd differentiates: float64, with tensors of the size of the rows that are read."""

    def dense_nats(self, logits: Tensor) -> Tensor:
        raise NotImplementedError

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        leaf = logits.detach().double().requires_grad_()
        with torch.enable_grad():
            nats = self.dense_nats(leaf)

        def backward(slope: Tensor) -> None:
            (gradient,) = torch.autograd.grad(nats, leaf, slope[:, 0].double())
            logits.copy_(gradient)

        return (nats.detach(),), backward


def _probabilities(logits: Tensor, num_states: int) -> Tensor:
    """Softmax; a state without a column has probability 0."""
    return F.pad(torch.softmax(logits, -1), (0, num_states - logits.shape[-1]))


@dataclass(frozen=True)
class _GeneralBound(_DenseFormula):
    """``diffusion.closed_forms.bound`` at the ratios of a belief, or with ``score`` at logits that are log ratios."""

    x: Tensor
    z: Tensor
    alpha: Tensor
    alpha_prime: Tensor
    prior: Tensor
    score: bool = False
    shared: ClassVar[tuple[str, ...]] = ("prior",)

    def dense_nats(self, logits: Tensor) -> Tensor:
        if not self.score:
            p = _probabilities(logits, len(self.prior))
            logits = posterior.log_ratios(p, self.z, self.alpha, self.prior)
        return closed_forms.bound(logits, self.x, self.z, self.alpha, self.alpha_prime, self.prior)


@dataclass(frozen=True)
class _GeneralDivergence(_DenseFormula):
    """``scale`` times KL(q(z_s | z_t, x) || q(z_s | z_t, p)) of two posteriors."""

    x: Tensor
    z: Tensor
    alpha_t: Tensor
    alpha_s: Tensor
    prior: Tensor
    scale: float = 1.0
    shared: ClassVar[tuple[str, ...]] = ("prior",)

    def dense_nats(self, logits: Tensor) -> Tensor:
        p = _probabilities(logits, len(self.prior))
        clean = F.one_hot(self.x, len(self.prior)).to(p)
        true, model = (
            posterior.posterior(belief, self.z, self.alpha_t, self.alpha_s, self.prior) for belief in (clean, p)
        )
        # a state that the true posterior excludes adds nothing, whatever the model says of it
        log_model = torch.where(true > 0, model, 1.0).log()
        return self.scale * (torch.xlogy(true, true) - true * log_model).sum(-1)


@dataclass(frozen=True)
class _GeneralFormulas:
    """Any process: its prior is all that is needed. Outside the prior's support no noise arrives, and no loss."""

    process: Process

    def bound(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> _GeneralBound:
        return _GeneralBound(x, z, alpha, alpha_prime, prior_on(self.process, x.device))

    def divergence(self, x: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, scale: float) -> _GeneralDivergence:
        return _GeneralDivergence(x, z, alpha_t, alpha_s, prior_on(self.process, x.device), scale)

    def score_entropy(self, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> _GeneralBound:
        return _GeneralBound(x, z, alpha, alpha_prime, prior_on(self.process, x.device), score=True)

    def loss_positions(self, z: Tensor) -> Tensor:
        return self.process.prior_of(z) > 0


CLOSED_FORMS: dict[type, Callable[..., _ProcessFormulas]] = {
    Uniform: _UniformFormulas,
    GaussianUniform: _UniformFormulas,
    Absorbing: _AbsorbingFormulas,
}


def formulas_of(process: Process) -> _ProcessFormulas:
    """The formulas of a process: its closed forms, or the general ones."""
    return CLOSED_FORMS.get(type(process), _GeneralFormulas)(process)
