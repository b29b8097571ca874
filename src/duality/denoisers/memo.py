"""Beliefs that are kept: ``Memoized`` saves network calls, ``Recorded`` shows what a sampler was given."""

from __future__ import annotations

import torch
from torch import Tensor

from duality.devices import static_shapes
from duality.fused.lazy import Belief, belief_of, materialised_log_probs
from duality.protocols import AnyDenoiser, Dropout, Labels, Latent, Valid


class Memoized:
    """Keeps the last belief of each sequence, and asks the network only about sequences that changed since.

    For denoisers whose belief depends on the tokens alone (MDLM): late steps in which no token was unmasked then cost
    nothing. ``calls`` counts the sequences that reached the network. Use one for each batch of samples. Where shapes
    are static (``devices``) nothing is kept: the device would be waited for in every step to know what has changed.
    """

    def __init__(self, denoiser: AnyDenoiser):
        self.denoiser = denoiser
        self.calls = 0
        self._seen: Tensor | None = None
        self._labels: Labels = None
        self._belief: Belief | None = None

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        if not isinstance(z, Tensor):
            raise TypeError("Memoized takes token ids")
        if static_shapes(z.device):
            self.calls += len(z)
            return belief_of(self.denoiser, z, alpha, valid, dropout, labels)
        changed = self._find_changes(z, labels)
        count = int(changed.sum())
        self.calls += count
        if count == len(z) or self._belief is None:
            self._belief = belief_of(self.denoiser, z, alpha, valid, dropout, labels)
        elif count:
            rows = None if valid is None else valid[changed]
            kept = labels if labels is None or len(labels) == 1 else labels[changed]
            fresh = belief_of(self.denoiser, z[changed], alpha[changed], rows, dropout, kept)
            places = changed[:, None].expand(z.shape).flatten().nonzero()[:, 0]
            self._belief = self._belief.put(places, fresh)
        self._seen, self._labels = z, labels
        return self._belief

    log_probs = materialised_log_probs

    def _find_changes(self, z: Tensor, labels: Labels) -> Tensor:
        """Which sequences (B,) are not what they were in the last call."""
        everything = torch.ones(len(z), dtype=torch.bool, device=z.device)
        if self._seen is None or self._seen.shape != z.shape:
            return everything
        if labels is None or self._labels is None:
            return everything if labels is not self._labels else (self._seen != z).any(-1)
        if labels.shape != self._labels.shape:
            return everything
        return (self._seen != z).any(-1) | (labels != self._labels)


class Recorded:
    """Keeps its last ``answer``, and reads with ``valid``: it shows which belief a sampler was given."""

    def __init__(self, denoiser: AnyDenoiser, valid: Valid = None):
        self.denoiser = denoiser
        self.valid = valid
        self.answer: Belief | None = None

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        self.answer = belief_of(self.denoiser, z, alpha, self.valid, dropout, labels)
        return self.answer

    log_probs = materialised_log_probs
