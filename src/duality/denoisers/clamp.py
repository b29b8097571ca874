"""Known tokens: the network reads them clean, whatever the noise has made of them.

Clamped, ClampedScore        for samplers (prompts, infilling): the belief about known tokens is certain as well, so
                             that every sampler ends with them in place
in_context                   for measures: what is said about known tokens is left as it is, because a measure of
                             the other tokens does not read it
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from duality.denoisers.wrapping import needs_belief
from duality.devices import positions
from duality.diffusion import draws, posterior
from duality.diffusion.processes import prior_on
from duality.fused.lazy import Belief, Ratios, belief_of, materialised_log_probs, materialised_log_ratios, ratios_of
from duality.protocols import AnyDenoiser, Denoiser, Dropout, Labels, Latent, Prefix, Process, Score, TopK, Valid


@dataclass(frozen=True)
class Clamped:
    """Known tokens stay: ``tokens`` (L,) where ``known`` (L,) is True."""

    denoiser: AnyDenoiser
    tokens: Tensor
    known: Tensor

    def __post_init__(self) -> None:
        needs_belief(self.denoiser, "Clamped", "use ClampedScore")

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        if isinstance(z, TopK):
            raise TypeError("Clamped takes token ids, not a mixture: known tokens are certain")
        if isinstance(z, Prefix):
            # one position, whose prefix already holds the known tokens before it
            tokens, known = (part[z.position, None] for part in (self.tokens, self.known))
            belief, shape = belief_of(self.denoiser, z, alpha, valid, dropout, labels), z.ids.shape
        else:
            tokens, known, shape = self.tokens, self.known, z.shape
            belief = belief_of(self.denoiser, torch.where(known, tokens, z), alpha, valid, dropout, labels)
        certain = torch.full_like(tokens, -1).expand(shape) if belief.certain is None else belief.certain
        return replace(belief, certain=torch.where(known, tokens, certain))

    log_probs = materialised_log_probs


@dataclass(frozen=True)
class ClampedScore:
    """``Clamped`` for a score model: the ratios of known tokens are those of certainty."""

    denoiser: AnyDenoiser
    process: Process
    tokens: Tensor
    known: Tensor

    def ratios(
        self, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Ratios:
        ratios = ratios_of(self.denoiser, torch.where(self.known, self.tokens, z), alpha, valid, dropout, labels)
        prior, levels = prior_on(self.process, z.device), alpha.repeat_interleave(z.shape[1])

        def make_certain(log_ratios: Tensor, rows: Tensor) -> Tensor:
            place = rows % z.shape[1]
            made, size = log_ratios.clone(), draws.block_rows(log_ratios.shape[-1], z.device)
            for some in torch.split(positions(self.known[place]), size):
                at, sure = rows[some], self.known[place[some]]
                belief = F.one_hot(self.tokens[place[some]], log_ratios.shape[-1]).double()
                certain = posterior.log_ratios(belief, z.flatten()[at], levels[at], prior).to(made.dtype)
                made[some] = torch.where(sure[:, None], certain, made[some])
            return made

        return replace(ratios, z=z, transforms=(*ratios.transforms, make_certain))

    log_ratios = materialised_log_ratios


@dataclass(frozen=True)
class _InContext:
    """The network reads ``tokens`` where ``known`` is True, both (B, L), and the positions of its own ``valid``.

    The positions that a measure gives as valid are those that it pays for. The network has to read the known ones too:
    therefore it is given the wrapper's ``valid``. At all other positions the belief is that of ``Clamped``.
    """

    denoiser: AnyDenoiser
    tokens: Tensor
    known: Tensor
    valid: Valid = None

    def __post_init__(self) -> None:
        needs_belief(self.denoiser, "InContext", "use InContextScore")

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        if not isinstance(z, Tensor):
            raise TypeError("InContext takes token ids: known tokens are certain")
        seen = torch.where(self.known, self.tokens, z)
        return belief_of(self.denoiser, seen, alpha, self.valid, dropout, labels)

    log_probs = materialised_log_probs


@dataclass(frozen=True)
class _InContextScore:
    """``_InContext`` for a score model."""

    denoiser: AnyDenoiser
    tokens: Tensor
    known: Tensor
    valid: Valid = None

    def ratios(
        self, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Ratios:
        seen = torch.where(self.known, self.tokens, z)
        return ratios_of(self.denoiser, seen, alpha, self.valid, dropout, labels)

    log_ratios = materialised_log_ratios


def in_context(denoiser: AnyDenoiser, tokens: Tensor, known: Tensor, valid: Valid) -> _InContext | _InContextScore:
    """The denoiser that reads known tokens clean, for a measure of the others; a Gaussian model is refused."""
    if isinstance(denoiser, Denoiser):
        return _InContext(denoiser, tokens, known, valid)
    if isinstance(denoiser, Score):
        return _InContextScore(denoiser, tokens, known, valid)
    raise ValueError(
        f"context with a {type(denoiser).__name__}: a Gaussian model reads vectors, in which no token can be held in "
        "place; leave the context out, or use a discrete model"
    )
