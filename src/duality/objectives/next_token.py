"""The autoregressive model: -log p(x_l | x_<l), exact, for every token of the sequence. No noise, no time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.wrapping import Readout, unwrap
from duality.fused.formulas import CrossEntropy
from duality.fused.lazy import belief_of
from duality.fused.loss import fused_loss
from duality.noise import Noise
from duality.objectives.base import NoEnds, dropout_of
from duality.protocols import AnyDenoiser, Denoiser, Kind, Loss, Valid


@dataclass(frozen=True)
class NextToken(NoEnds):
    """Cross-entropy of each token given the ones before it."""

    kind: Kind = "exact"

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        model = unwrap(denoiser)
        if isinstance(model, Denoiser) and isinstance(model, Readout) and not model.backbone.causal:
            raise ValueError(
                f"a {type(model).__name__} reads the token that it is to predict, and NextToken needs the belief about "
                "a token given the ones before it: use CausalDenoiser, or the objective of the denoiser's own noise"
            )
        belief = belief_of(denoiser, x, torch.ones_like(t), valid, dropout_of(noise, dropout))
        return fused_loss(belief, CrossEntropy(x, torch.ones_like(t)[:, None]), valid)
