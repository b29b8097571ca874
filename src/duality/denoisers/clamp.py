"""Known tokens stay, for prompts and infilling: the network reads them clean, and the belief about them is certain.

Every sampler therefore ends with them in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from duality.denoisers.wrapping import needs_belief
from duality.diffusion import posterior
from duality.fused.lazy import Belief, Ratios, belief_of, materialised_log_probs, materialised_log_ratios, ratios_of
from duality.protocols import AnyDenoiser, Dropout, Labels, Latent, Prefix, Process, TopK, Valid


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
        prior, levels = self.process.prior().to(z.device), alpha.repeat_interleave(z.shape[1])

        def make_certain(log_ratios: Tensor, rows: Tensor) -> Tensor:
            place = rows % z.shape[1]
            sure = self.known[place].nonzero()[:, 0]
            tokens, at = self.tokens[place[sure]], rows[sure]
            belief = F.one_hot(tokens, log_ratios.shape[-1]).double()
            certain = posterior.log_ratios(belief, z.flatten()[at], levels[at], prior)
            return log_ratios.index_copy(0, sure, certain.to(log_ratios.dtype))

        return replace(ratios, z=z, transforms=(*ratios.transforms, make_certain))

    log_ratios = materialised_log_ratios
