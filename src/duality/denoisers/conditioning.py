"""Labels and guidance: a class-conditional denoiser is given the class of each sequence.

    with_labels(denoiser, labels)    the denoiser for these labels (B,); ``num_labels`` means "no label"
    Guided(denoiser, label, scale)   classifier-free guidance

Labels pass through every wrapper. Where two wrappers both choose the labels, neither can be right, and the
composition is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from duality.denoisers.wrapping import needs_belief, num_labels_of
from duality.fused.lazy import (
    Belief,
    Ratios,
    at_least_float32,
    belief_of,
    materialised_log_probs,
    materialised_log_ratios,
    ratios_of,
)
from duality.protocols import AnyDenoiser, Denoiser, Dropout, Labels, Latent, Score, Valid, Wrapper


def _chosen_once(own: Tensor, outer: Tensor | None) -> Tensor:
    """``own`` labels, unless a wrapper outside has chosen some as well."""
    if outer is not None:
        raise ValueError("two wrappers choose the labels of one denoiser: keep one of with_labels and Guided")
    return own


@dataclass(frozen=True)
class Labelled:
    """The belief of a class-conditional denoiser, for these labels."""

    denoiser: AnyDenoiser
    labels: Tensor

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        return belief_of(self.denoiser, z, alpha, valid, dropout, _chosen_once(self.labels, labels))

    log_probs = materialised_log_probs


@dataclass(frozen=True)
class LabelledScore:
    """The ratios of a class-conditional score model, for these labels."""

    denoiser: AnyDenoiser
    labels: Tensor

    def ratios(
        self, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Ratios:
        return ratios_of(self.denoiser, z, alpha, valid, dropout, _chosen_once(self.labels, labels))

    log_ratios = materialised_log_ratios


def with_labels(denoiser: AnyDenoiser, labels: Tensor) -> Labelled | LabelledScore:
    """A class-conditional model for these labels, (B,); ``num_labels`` means "no label"."""
    if isinstance(denoiser, Denoiser):
        return Labelled(denoiser, labels)
    if isinstance(denoiser, Score):
        return LabelledScore(denoiser, labels)
    raise ValueError(f"labels for a {type(denoiser).__name__}: Gaussian models are not class-conditional here")


def with_labels_of(conditioned: AnyDenoiser, other: AnyDenoiser) -> AnyDenoiser:
    """``other`` with the labels of ``conditioned``, if it has any: a teacher gets the labels of its student.

    A wrapper binds the labels, however many wrappers are around it.
    """
    while isinstance(conditioned, Wrapper):
        if isinstance(conditioned, _Conditioned):
            return with_labels(other, conditioned.labels)
        conditioned = conditioned.denoiser
    return other


@runtime_checkable
class _Conditioned(Protocol):
    """A wrapper that binds labels."""

    @property
    def labels(self) -> Tensor: ...


@dataclass(frozen=True)
class Guided:
    """Classifier-free guidance towards ``label``: p(x | label)^scale p(x)^(1 - scale), normalised.

    ``denoiser`` must be class-conditional, trained with labels that were dropped for some samples. scale 0 is the
    unconditional model, 1 the conditional one, more goes beyond it. Two network calls, in one batch. Inside
    it may be a temperature or known tokens; top-p has to be outside.
    """

    denoiser: AnyDenoiser
    label: int
    scale: float

    def __post_init__(self) -> None:
        needs_belief(self.denoiser, "guidance", "use a denoiser that answers with probabilities (Duo, MDLM, D3PM)")
        num_labels = num_labels_of(self.denoiser)
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

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        if not isinstance(z, Tensor):
            raise TypeError("Guided takes token ids")
        own = torch.full_like(z[:, 0], self.label)
        no_label = torch.full_like(own, num_labels_of(self.denoiser))
        pair = _chosen_once(torch.cat([own, no_label]), labels)
        twice = None if valid is None else valid.repeat(2, 1)
        joint = belief_of(self.denoiser, z.repeat(2, 1), alpha.repeat(2), twice, dropout, pair)
        if not all(transform.linear for transform in joint.transforms):
            raise ValueError(
                "guidance divides by the unconditional belief, which top-p makes 0 in places: put top-p outside, "
                "TopP(Guided(denoiser, label, scale), mass)"
            )
        # Logits are linear in the vectors, and the softmax ignores what is common to a row: mixing the vectors mixes
        # the logarithms of the beliefs.
        conditioned, unconditioned = at_least_float32(joint.vectors).chunk(2)
        certain = None if joint.certain is None else joint.certain[: len(z)]
        mixed = unconditioned + self.scale * (conditioned - unconditioned)
        return replace(joint, vectors=mixed.to(joint.vectors.dtype), certain=certain)

    log_probs = materialised_log_probs
