"""Labels and guidance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from duality.denoisers.wrapping import needs_belief
from duality.fused.lazy import Belief, Ratios, belief_of, precise, ratios_of, ratios_written_out, written_out
from duality.noise import Noise
from duality.protocols import Denoiser, Latent


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
