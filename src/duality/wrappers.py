"""Denoiser in, denoiser out: ways to bend a belief, which every sampler then has for free.

``Temperature`` and ``TopP`` act on the belief p about the clean token, never on the posterior of a step. ``Clamped``
fixes known tokens: the network reads them clean, and the belief about them is certain, so every sampler ends with them
in place. ``Guided`` leans towards a class. ``Memoized`` spares calls that would give the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from duality import functional
from duality.answers import Belief, Bend, Ratios, belief_of, precise, ratios_of, ratios_written_out, written_out
from duality.noise import Noise
from duality.protocols import Denoiser, Latent, Prefix, Process, Score, TopK


def needs_belief(denoiser: object, who: str, instead: str) -> None:
    """Refuse a model that answers with ratios or vectors."""
    if not isinstance(denoiser, Denoiser):
        raise ValueError(f"{who} acts on probabilities, and a {type(denoiser).__name__} gives none: {instead}")


def bent(belief: Belief, bend: Bend) -> Belief:
    """A belief that ``bend`` acts on, row by row, where it is read."""
    return replace(belief, bends=(*belief.bends, bend))


@dataclass(frozen=True)
class Temperature:
    """p^(1/T), normalised: T < 1 sharpens, T > 1 flattens."""

    denoiser: Denoiser
    temperature: float

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}: it must be positive; 1 changes nothing")
        needs_belief(self.denoiser, "temperature", "leave it at 1")

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        return bent(belief_of(self.denoiser, z, alpha, mask, dropout), self.bend)

    def bend(self, log_p: Tensor, rows: Tensor) -> Tensor:
        # from the largest down, so that a tiny temperature leaves that one instead of no number at all
        return torch.log_softmax((log_p - log_p.amax(-1, keepdim=True)) / self.temperature, -1)

    log_probs = written_out


@dataclass(frozen=True)
class TopP:
    """The nucleus: the fewest tokens whose mass reaches ``mass``, the crossing token included, renormalised."""

    denoiser: Denoiser
    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top-p is {self.mass}: it must be in (0, 1]; 1 changes nothing")
        needs_belief(self.denoiser, "top-p", "leave it at 1")

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        belief = belief_of(self.denoiser, z, alpha, mask, dropout)
        return belief if self.mass == 1 else bent(belief, self.bend)

    def bend(self, log_p: Tensor, rows: Tensor) -> Tensor:
        ordered, ids = log_p.sort(-1, descending=True)
        probs = ordered.double().exp()
        # float32 probabilities sum to 1 only nearly: the mass is a share of what they sum to
        outside = probs.cumsum(-1) - probs >= self.mass * probs.sum(-1, keepdim=True)
        cut = torch.zeros_like(outside).scatter(-1, ids, outside)
        return torch.log_softmax(log_p.masked_fill(cut, -torch.inf), -1)

    log_probs = written_out


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
            certain = functional.log_ratios(belief, z.flatten()[at], levels[at], prior)
            return log_ratios.index_copy(0, sure, certain.to(log_ratios.dtype))

        return replace(ratios, z=z, bends=(*ratios.bends, bend))

    log_ratios = ratios_written_out


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

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        if not isinstance(z, Tensor):
            raise TypeError("Guided takes token ids")
        nobody = self.denoiser.backbone.num_labels
        labels = torch.cat([torch.full_like(z[:, 0], self.label), torch.full_like(z[:, 0], nobody)])
        twice = None if mask is None else mask.repeat(2, 1)
        both = belief_of(self.denoiser, z.repeat(2, 1), alpha.repeat(2), twice, dropout, labels)
        # Logits are linear in the vectors and the softmax forgets what is common to a row: to mix the vectors is to
        # mix the logarithms of the beliefs.
        told, untold = precise(both.vectors).chunk(2)
        certain = None if both.certain is None else both.certain[: len(z)]
        mixed = untold + self.scale * (told - untold)
        return replace(both, vectors=mixed.to(both.vectors.dtype), certain=certain)

    log_probs = written_out


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


def labelled(denoiser: Any, labels: Tensor) -> Labelled | LabelledScore:
    """A class-conditional model that has been told the classes, (B,); ``num_labels`` stands for none."""
    return Labelled(denoiser, labels) if isinstance(denoiser, Denoiser) else LabelledScore(denoiser, labels)


@dataclass(frozen=True)
class Labelled:
    """The belief of a class-conditional denoiser, for these classes."""

    denoiser: Any
    labels: Tensor

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        return belief_of(self.denoiser, z, alpha, mask, dropout, self.labels)

    log_probs = written_out


@dataclass(frozen=True)
class LabelledScore:
    """The ratios of a class-conditional score model, for these classes."""

    denoiser: Any
    labels: Tensor

    def ratios(self, z: Tensor, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Ratios:
        return ratios_of(self.denoiser, z, alpha, mask, dropout, self.labels)

    log_ratios = ratios_written_out


def told_like(told: Any, other: Any) -> Any:
    """``other`` told the classes that ``told`` was told, if any: what a student hears, its teacher hears."""
    return labelled(other, told.labels) if isinstance(told, (Labelled, LabelledScore)) else other


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


_WRAPPERS = (Temperature, TopP, Clamped, ClampedScore, Guided, Memoized, Recorded, Labelled, LabelledScore)


def bare(denoiser: Any) -> Any:
    """The model under the wrappers."""
    while isinstance(denoiser, _WRAPPERS):
        denoiser = denoiser.denoiser
    return denoiser
