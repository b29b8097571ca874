"""What a network computes before its head: the vectors of a text (``Model.hidden``)."""

from __future__ import annotations

import torch
from torch import Tensor

from duality.fused.lazy import belief_of, ratios_of
from duality.protocols import AnyDenoiser, Denoiser, Score


def hidden_vectors(denoiser: AnyDenoiser, tokens: Tensor, alpha: float) -> Tensor:
    """The vectors (B, L, D) of tokens (B, L) or (L,) at the signal level ``alpha``; a Gaussian model is refused."""
    z = tokens[None] if tokens.ndim == 1 else tokens
    if z.ndim != 2 or z.is_floating_point() or not 0 < alpha <= 1:
        raise ValueError(
            f"tokens of shape {tuple(z.shape)} and type {z.dtype}, alpha {alpha}: give whole numbers (B, L) and an "
            "alpha in (0, 1]"
        )
    level = torch.full((len(z),), alpha, dtype=torch.float64, device=z.device)
    if isinstance(denoiser, Denoiser):
        return belief_of(denoiser, z.long(), level).vectors
    if isinstance(denoiser, Score):
        return ratios_of(denoiser, z.long(), level).vectors
    raise ValueError(f"hidden of a {type(denoiser).__name__}: it reads vectors, not tokens; use a discrete model")
