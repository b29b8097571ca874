"""The bound of a Gaussian model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.diffusion.vectors import (
    cross_entropy,
    diffuse,
    diffusion_nats,
    prior_nats,
)
from duality.noise import Noise
from duality.objectives.base import dropout_of, summed
from duality.protocols import Ends, Kind, Loss, VectorDenoiser


def gamma_ends(denoiser: VectorDenoiser, like: Tensor) -> tuple[Tensor, Tensor]:
    """gamma_0 and gamma_1, on the device of ``like``."""
    first, final = denoiser.gamma(torch.tensor([0.0, 1.0], dtype=torch.float64, device=like.device))[0]
    return first, final


@dataclass(frozen=True)
class Variational:
    """The bound of a Gaussian model.

    Times are the model's own; with ``even`` they run through gamma at constant speed, for models whose own times would
    make the measurement noisy.
    """

    even: bool = False
    kind: Kind = "bound"

    def __call__(
        self,
        denoiser: VectorDenoiser,
        x: Tensor,
        t: Tensor,
        noise: Noise,
        mask: Tensor | None = None,
        dropout: bool = False,
    ) -> Loss:
        gamma, slope = denoiser.gamma(t.double())
        if self.even:
            first, final = gamma_ends(denoiser, x)
            gamma, slope = first + (final - first) * t.double(), (final - first).expand(len(t))
        e = denoiser.embeddings()[x]
        z = diffuse(e, gamma, noise.normal("vector", *e.shape[1:]))
        x_hat = denoiser.predict(z, gamma, mask, dropout_of(noise, dropout)).x_hat
        return summed(diffusion_nats(e, x_hat, gamma, slope), mask)

    def ends(self, denoiser: VectorDenoiser, x: Tensor, noise: Noise, mask: Tensor | None = None) -> Ends:
        first, final = gamma_ends(denoiser, x)
        e = denoiser.embeddings()[x]
        z = diffuse(e, first.expand(len(x)), noise.fold("reconstruction").normal("vector", *e.shape[1:]))
        return Ends(prior_nats(e, final), cross_entropy(denoiser.decode(z, mask), x))
