"""Known tokens stay."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from duality.denoisers.wrapping import needs_belief
from duality.diffusion import posterior
from duality.fused.lazy import Belief, Ratios, belief_of, ratios_of, ratios_written_out, written_out
from duality.noise import Noise
from duality.protocols import Denoiser, Latent, Prefix, Process, Score, TopK


@dataclass(frozen=True)
class Clamped:
    """Known tokens stay: ``tokens`` (L,) where ``known`` (L,) is True. For prompts and infilling."""

    denoiser: Denoiser
    tokens: Tensor
    known: Tensor

    def __post_init__(self) -> None:
        needs_belief(self.denoiser, "Clamped", "use ClampedScore")

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        if isinstance(z, TopK):
            raise TypeError("Clamped takes token ids, not a mixture: known tokens are certain")
        if isinstance(z, Prefix):
            # one position, whose prefix already holds the known tokens before it
            tokens, known = (part[z.position, None] for part in (self.tokens, self.known))
            belief, shape = belief_of(self.denoiser, z, alpha, mask, dropout), z.ids.shape
        else:
            tokens, known = self.tokens, self.known
            belief, shape = belief_of(self.denoiser, torch.where(known, tokens, z), alpha, mask, dropout), z.shape
        certain = torch.full_like(tokens, -1).expand(shape) if belief.certain is None else belief.certain
        return replace(belief, certain=torch.where(known, tokens, certain))

    log_probs = written_out


@dataclass(frozen=True)
class ClampedScore:
    """``Clamped`` for a score model: the ratios of known tokens are those of certainty."""

    denoiser: Score
    process: Process
    tokens: Tensor
    known: Tensor

    def ratios(self, z: Tensor, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Ratios:
        ratios = ratios_of(self.denoiser, torch.where(self.known, self.tokens, z), alpha, mask, dropout)
        prior, levels = self.process.prior().to(z.device), alpha.repeat_interleave(z.shape[1])

        def bend(log_ratios: Tensor, rows: Tensor) -> Tensor:
            place = rows % z.shape[1]
            sure = self.known[place].nonzero()[:, 0]
            tokens, at = self.tokens[place[sure]], rows[sure]
            belief = torch.nn.functional.one_hot(tokens, log_ratios.shape[-1]).double()
            certain = posterior.log_ratios(belief, z.flatten()[at], levels[at], prior)
            return log_ratios.index_copy(0, sure, certain.to(log_ratios.dtype))

        return replace(ratios, z=z, bends=(*ratios.bends, bend))

    log_ratios = ratios_written_out
