"""Denoiser in, denoiser out: ways to bend a belief, which every sampler then has for free.

``Temperature`` and ``TopP`` act on the belief p about the clean token, never on the posterior of a step. ``Clamped``
fixes known tokens: the network reads them clean, and the belief about them is certain, so every sampler ends with them
in place. ``Guided`` leans towards a class. ``Memoized`` spares calls that would give the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from duality import functional
from duality.noise import Noise
from duality.protocols import Denoiser, Latent, Prefix, Process, Score, TopK


def needs_belief(denoiser: object, who: str, instead: str) -> None:
    """Refuse a model that answers with ratios or vectors."""
    if not isinstance(denoiser, Denoiser):
        raise ValueError(f"{who} acts on probabilities, and a {type(denoiser).__name__} gives none: {instead}")


@dataclass(frozen=True)
class Temperature:
    """p^(1/T), normalised: T < 1 sharpens, T > 1 flattens."""

    denoiser: Denoiser
    temperature: float

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}: it must be positive; 1 changes nothing")
        needs_belief(self.denoiser, "temperature", "leave it at 1")

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        log_p = self.denoiser.log_probs(z, alpha, mask, dropout)
        # from the largest down, so that a tiny temperature leaves that one instead of no number at all
        return torch.log_softmax((log_p - log_p.amax(-1, keepdim=True)) / self.temperature, -1)


@dataclass(frozen=True)
class TopP:
    """The nucleus: the fewest tokens whose mass reaches ``mass``, the crossing token included, renormalised."""

    denoiser: Denoiser
    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top-p is {self.mass}: it must be in (0, 1]; 1 changes nothing")
        needs_belief(self.denoiser, "top-p", "leave it at 1")

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        log_p = self.denoiser.log_probs(z, alpha, mask, dropout)
        if self.mass == 1:
            return log_p
        ordered, ids = log_p.sort(-1, descending=True)
        probs = ordered.double().exp()
        # float32 probabilities sum to 1 only nearly: the mass is a share of what they sum to
        outside = probs.cumsum(-1) - probs >= self.mass * probs.sum(-1, keepdim=True)
        cut = torch.zeros_like(outside).scatter(-1, ids, outside)
        return torch.log_softmax(log_p.masked_fill(cut, -torch.inf), -1)


@dataclass(frozen=True)
class Clamped:
    """Known tokens stay: ``tokens`` (L,) where ``known`` (L,) is True. For prompts and infilling."""

    denoiser: Denoiser
    tokens: Tensor
    known: Tensor

    def __post_init__(self) -> None:
        needs_belief(self.denoiser, "Clamped", "use ClampedScore")

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        if isinstance(z, TopK):
            raise TypeError("Clamped takes token ids, not a mixture: known tokens are certain")
        if isinstance(z, Prefix):
            # one position, whose prefix already holds the known tokens before it
            tokens, known = (part[z.position, None] for part in (self.tokens, self.known))
            log_p, shape = self.denoiser.log_probs(z, alpha, mask, dropout), z.ids.shape
        else:
            tokens, known = self.tokens, self.known
            log_p, shape = self.denoiser.log_probs(torch.where(known, tokens, z), alpha, mask, dropout), z.shape
        certain = torch.full_like(log_p, -torch.inf)
        certain = certain.scatter(-1, tokens.expand(shape)[..., None], 0.0)
        return torch.where(known[:, None], certain, log_p)


@dataclass(frozen=True)
class ClampedScore:
    """``Clamped`` for a score model: the ratios of known tokens are those of certainty."""

    denoiser: Score
    process: Process
    tokens: Tensor
    known: Tensor

    def log_ratios(self, z: Tensor, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        ratios = self.denoiser.log_ratios(torch.where(self.known, self.tokens, z), alpha, mask, dropout)
        belief = torch.nn.functional.one_hot(self.tokens, ratios.shape[-1]).double().expand(ratios.shape)
        certain = functional.log_ratios(belief, z, alpha[:, None], self.process.prior().to(z.device))
        return torch.where(self.known[:, None], certain.to(ratios.dtype), ratios)


@dataclass(frozen=True)
class Guided:
    """Classifier-free guidance towards ``label``: p(x | label)^scale p(x)^(1 - scale), normalised.

    ``denoiser`` must be class-conditional, trained with labels that were dropped now and then. scale 0 is the
    unconditional model, 1 the conditional one, more goes beyond it. Two network calls, in one batch.
    """

    denoiser: Any
    label: int
    scale: float

    def __post_init__(self) -> None:
        needs_belief(self.denoiser, "guidance", "use a denoiser that answers with probabilities (Duo, MDLM, D3PM)")
        num_labels = self.denoiser.backbone.num_labels
        if not num_labels:
            raise ValueError(
                "guidance on an unconditional model: it was trained without classes; train one on labelled text with "
                "--set data.labels=true"
            )
        if not 0 <= self.label < num_labels:
            raise ValueError(f"label {self.label}: this model has labels 0 to {num_labels - 1}")
        if not 0 <= self.scale < float("inf"):
            raise ValueError(
                f"the guidance scale is {self.scale}: it must be at least 0; 1 is the plain conditional model"
            )

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        if not isinstance(z, Tensor):
            raise TypeError("Guided takes token ids")
        nobody = self.denoiser.backbone.num_labels
        labels = torch.cat([torch.full_like(z[:, 0], self.label), torch.full_like(z[:, 0], nobody)])
        twice = None if mask is None else mask.repeat(2, 1)
        both = self.denoiser.log_probs(z.repeat(2, 1), alpha.repeat(2), twice, dropout, labels)
        told, untold = both.chunk(2)
        # Where both are certain that a state is not (-inf), it is not; -inf - -inf would be no number.
        bent = torch.where(told == -torch.inf, told, untold + self.scale * (told - untold))
        return torch.log_softmax(bent, -1)


class Memoized:
    """Keeps the last belief of each sequence, and asks the network only about sequences that changed since.

    For denoisers whose belief depends on the tokens alone (MDLM): late steps in which no token was unmasked then cost
    nothing. ``calls`` counts the sequences that reached the network. One per batch of samples: see ``generate``.
    There is one belief, the last: asking again changes what was answered before.
    """

    def __init__(self, denoiser: Denoiser):
        self.denoiser = denoiser
        self.calls = 0
        self._seen: Tensor | None = None
        self._belief: Tensor | None = None

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        if not isinstance(z, Tensor):
            raise TypeError("Memoized takes token ids")
        if self._seen is None or self._belief is None or self._seen.shape != z.shape:
            changed = torch.ones(len(z), dtype=torch.bool, device=z.device)
        else:
            changed = (self._seen != z).any(-1)
        count = int(changed.sum())
        self.calls += count
        if count == len(z):
            self._belief = None  # before there is another
            self._belief = self.denoiser.log_probs(z, alpha, mask, dropout)
        elif count:
            assert self._belief is not None
            rows = None if mask is None else mask[changed]
            fresh = self.denoiser.log_probs(z[changed], alpha[changed], rows, dropout)
            self._belief = self._belief.contiguous().index_put_((changed,), fresh)
        assert self._belief is not None
        self._seen = z
        return self._belief


def labelled(denoiser: Any, labels: Tensor) -> Labelled | LabelledScore:
    """A class-conditional model that has been told the classes, (B,); ``num_labels`` stands for none."""
    return Labelled(denoiser, labels) if isinstance(denoiser, Denoiser) else LabelledScore(denoiser, labels)


@dataclass(frozen=True)
class Labelled:
    """The belief of a class-conditional denoiser, for these classes."""

    denoiser: Any
    labels: Tensor

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        belief: Tensor = self.denoiser.log_probs(z, alpha, mask, dropout, self.labels)
        return belief


@dataclass(frozen=True)
class LabelledScore:
    """The ratios of a class-conditional score model, for these classes."""

    denoiser: Any
    labels: Tensor

    def log_ratios(self, z: Tensor, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        ratios: Tensor = self.denoiser.log_ratios(z, alpha, mask, dropout, self.labels)
        return ratios


def told_like(told: Any, other: Any) -> Any:
    """``other`` told the classes that ``told`` was told, if any: what a student hears, its teacher hears."""
    return labelled(other, told.labels) if isinstance(told, (Labelled, LabelledScore)) else other


class Recorded:
    """Remembers its last ``answer``, and reads with ``mask``: for who wants to know what a sampler was told."""

    def __init__(self, denoiser: Denoiser, mask: Tensor | None = None):
        self.denoiser = denoiser
        self.mask = mask
        self.answer: Tensor | None = None

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        self.answer = self.denoiser.log_probs(z, alpha, self.mask, dropout)
        return self.answer


_WRAPPERS = (Temperature, TopP, Clamped, ClampedScore, Guided, Memoized, Recorded, Labelled, LabelledScore)


def bare(denoiser: Any) -> Any:
    """The model under the wrappers."""
    while isinstance(denoiser, _WRAPPERS):
        denoiser = denoiser.denoiser
    return denoiser
