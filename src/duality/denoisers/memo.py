"""Beliefs that are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from duality.fused.lazy import Belief, belief_of, written_out
from duality.noise import Noise
from duality.protocols import Denoiser, Latent


class Memoized:
    """Keeps the last belief of each sequence, and asks the network only about sequences that changed since.

    For denoisers whose belief depends on the tokens alone (MDLM): late steps in which no token was unmasked then cost
    nothing. ``calls`` counts the sequences that reached the network. One per batch of samples: see ``generate``.
    """

    def __init__(self, denoiser: Denoiser):
        self.denoiser = denoiser
        self.calls = 0
        self._seen: Tensor | None = None
        self._belief: Belief | None = None

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        if not isinstance(z, Tensor):
            raise TypeError("Memoized takes token ids")
        if self._seen is None or self._belief is None or self._seen.shape != z.shape:
            changed = torch.ones(len(z), dtype=torch.bool, device=z.device)
        else:
            changed = (self._seen != z).any(-1)
        count = int(changed.sum())
        self.calls += count
        if count == len(z) or self._belief is None:
            self._belief = belief_of(self.denoiser, z, alpha, mask, dropout)
        elif count:
            rows = None if mask is None else mask[changed]
            fresh = belief_of(self.denoiser, z[changed], alpha[changed], rows, dropout)
            places = changed[:, None].expand(z.shape).flatten().nonzero()[:, 0]
            self._belief = self._belief.put(places, fresh)
        self._seen = z
        return self._belief

    log_probs = written_out


class Recorded:
    """Remembers its last ``answer``, and reads with ``mask``: for who wants to know what a sampler was told."""

    def __init__(self, denoiser: Denoiser, mask: Tensor | None = None):
        self.denoiser = denoiser
        self.mask = mask
        self.answer: Belief | None = None

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        self.answer = belief_of(self.denoiser, z, alpha, self.mask, dropout)
        return self.answer

    log_probs = written_out
