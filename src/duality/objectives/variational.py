"""The variational bound of a Gaussian diffusion over vectors (Kingma et al., 2021), per token.

    -log p(x) <= KL(q(z_1 | x) || N(0, I)) + E_t 1/2 gamma'(t) exp(-gamma) ||e - x_hat||^2 - E log p(x | z_0)

The middle term is an integral over gamma: how t maps to [gamma_0, gamma_1] changes its variance, not its value.
What must hold: a perfect x_hat makes the bound the entropy of the data plus KL(q(z_1) || N(0, I)).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.denoisers.wrapping import vector_denoiser
from duality.diffusion.vectors import cross_entropy, diffuse, diffusion_nats, prior_nats
from duality.noise import Noise
from duality.objectives.base import dropout_of, loss_of_nats
from duality.protocols import AnyDenoiser, Ends, Kind, Loss, Valid, VectorDenoiser


def gamma_ends(denoiser: VectorDenoiser, like: Tensor) -> tuple[Tensor, Tensor]:
    """gamma_0 and gamma_1, on the device of ``like``."""
    first, final = denoiser.gamma(torch.arange(2, dtype=torch.float64, device=like.device))[0]
    return first, final


@dataclass(frozen=True)
class Variational:
    """The bound of a Gaussian model.

    Times are the model's own; with ``even`` gamma is linear in t, for models whose own times would give the measurement
    a large variance.
    """

    even: bool = False
    kind: Kind = "bound"

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        model = vector_denoiser(denoiser)
        gamma, slope = model.gamma(t.double())
        if self.even:
            first, final = gamma_ends(model, x)
            gamma, slope = first + (final - first) * t.double(), (final - first).expand(len(t))
        e = model.embeddings()[x]
        z = diffuse(e, gamma, noise.normal("vector", *e.shape[1:]))
        x_hat = model.predict(z, gamma, valid, dropout_of(noise, dropout)).x_hat
        return loss_of_nats(diffusion_nats(e, x_hat, gamma, slope), valid)

    def ends(self, denoiser: AnyDenoiser, x: Tensor, noise: Noise, valid: Valid = None) -> Ends:
        model = vector_denoiser(denoiser)
        first, final = gamma_ends(model, x)
        e = model.embeddings()[x]
        z = diffuse(e, first.expand(len(x)), noise.fold("reconstruction").normal("vector", *e.shape[1:]))
        return Ends(prior_nats(e, final), cross_entropy(model.decode(z, valid), x))
