"""A model that is a denoiser and its measure, and nothing else: what a likelihood reads of a trained one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from duality.models.trained import TrainedModel
from duality.protocols import AnyDenoiser, Measure
from duality.training import Precision


@dataclass(frozen=True)
class _Parts:
    denoiser: AnyDenoiser
    measure: Measure
    length: int
    device: torch.device
    precision: Precision = "float32"
    computing = TrainedModel.computing

    def with_label(self, label: str | None) -> AnyDenoiser:
        return self.denoiser


def toy_model(denoiser: AnyDenoiser, measure: Measure, length: int = 0) -> TrainedModel:
    """The model of these parts, for texts in windows of ``length`` tokens."""
    return cast(TrainedModel, _Parts(denoiser, measure, length, torch.device("cpu")))
