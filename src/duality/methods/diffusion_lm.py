"""Diffusion-LM (Li et al., 2022): Gaussian diffusion over learned embeddings, trained on squared error.

    sigma^2(t) = sqrt(s + (c - s) t)     the sqrt schedule: noise grows fastest at first
    x_hat      = network(z, gamma)       the embedding itself is predicted
    p(x | z_0) = softmax(table z_0 + b)  rounding, with the table of the embeddings

The published schedule is 1 - alpha^2 = sqrt(t + s), which exceeds 1 just before its end; here c = (1 - ``LEAST``)^2, so
that alpha^2(1) = ``LEAST``. The loss is the published L_simple, per token

    ||x_hat - e||^2 / d - log p(x | z_0) + alpha^2(1) ||e||^2 / d

The squared error alone would make all embeddings equal; the rounding term keeps them distinct. The squared error must
be a mean over the d entries: as a sum it would dominate, and all embeddings would become equal. The measure is the true
variational bound (``objectives.variational``), which weights the squared error by 1/2 gamma' exp(-gamma). Most of this
weight is at the clean end, where L_simple has little: with the published s the bound is far above log K. A larger s,
with more noise left for the rounding, lowers it. Its integral is taken in even steps of gamma, as most of it is at t
near s.

Left out of the original: T = 2000 discrete steps (time is continuous, and the network is given gamma), the network of
BERT's size, a second noise draw between e and z_0 (z_t is made from e), importance sampling of t, decoding by
minimum Bayes risk, and classifier-guided control.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from duality.diffusion.vectors import cross_entropy, diffuse
from duality.fused.lazy import at_least_float32
from duality.methods.base import ProcesslessMethod, require
from duality.noise import Noise
from duality.objectives.base import dropout_of, loss_of_nats
from duality.objectives.variational import Variational, gamma_ends
from duality.protocols import AnyDenoiser, Backbone, Dropout, Loss, Network, Phase, Prediction, Valid, Vocabulary
from duality.samplers.gaussian import GaussianAncestral

LEAST = 1e-4


class DiffusionLMDenoiser(nn.Module):
    """The network, the table of embeddings and the rounding's bias: a ``protocols.VectorDenoiser``."""

    def __init__(self, backbone: Network, num_tokens: int, offset: float):
        super().__init__()
        self.backbone = backbone
        self.offset = offset
        self.table = nn.Parameter(torch.randn(num_tokens, backbone.num_states))
        self.bias = nn.Parameter(torch.zeros(num_tokens))

    def embeddings(self) -> Tensor:
        return self.table

    def gamma(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """gamma and gamma' of sigma^2 = sqrt(s + (c - s) t), s being ``offset``: float64."""
        rate = (1 - LEAST) ** 2 - self.offset
        noise = (self.offset + rate * t.double()).sqrt()
        return torch.logit(noise), rate / (2 * noise.square() * (1 - noise))

    def predict(
        self, z: Tensor, gamma: Tensor, valid: Valid = None, dropout: Dropout = None, guess: Tensor | None = None
    ) -> Prediction:
        x_hat = self.regress(z, gamma, valid, dropout)
        return Prediction(x_hat, self.decode(x_hat))

    def regress(self, z: Tensor, gamma: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        """x_hat alone."""
        return at_least_float32(self.backbone.head(self.backbone.hidden(z, gamma, valid, dropout)))

    def decode(self, z: Tensor, valid: Valid = None) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            return z @ self.table.T + self.bias


@dataclass(frozen=True)
class _SimpleLoss:
    """L_simple: squared error and rounding, of equal weight. Its unit is not nats; ``Variational`` gives nats."""

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        model = require(denoiser, DiffusionLMDenoiser, "DiffusionLM")
        e = model.embeddings()[x]
        gamma = model.gamma(t)[0]
        first, final = gamma_ends(model, x)
        z = diffuse(e, gamma, noise.normal("vector", *e.shape[1:]))
        clean = diffuse(e, first.expand(len(x)), noise.fold("reconstruction").normal("vector", *e.shape[1:]))
        error = (model.regress(z, gamma, valid, dropout_of(noise, dropout)) - e).double().square().mean(-1)
        rounding = cross_entropy(model.decode(clean), x)
        return loss_of_nats(error + rounding + torch.sigmoid(-final) * e.double().square().mean(-1), valid)


@dataclass(frozen=True)
class DiffusionLM(ProcesslessMethod):
    """Diffusion-LM with embeddings of ``embedding_width`` and ``offset`` s: the noise of z_0 has variance sqrt(s).

    ``clamp`` is the clamping trick: at each sampling step the prediction is rounded to the nearest embedding.
    """

    embedding_width: int = 128
    offset: float = 1e-4
    clamp: bool = True

    def __post_init__(self) -> None:
        if self.embedding_width < 1:
            raise ValueError(
                f"method.embedding_width is {self.embedding_width}: it must be at least 1; the usual is 128"
            )
        if not 0 < self.offset < 0.9:
            raise ValueError(f"method.offset is {self.offset}: it must be in (0, 0.9); the usual is 1e-4")

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        if vocabulary.num_labels:
            raise ValueError(
                f"{vocabulary.num_labels} labels: Diffusion-LM is not class-conditional here; use data.labels=false, "
                "or a method that is (Duo, MDLM, D3PM)"
            )
        network = backbone.build(self.embedding_width, input_width=self.embedding_width)
        return DiffusionLMDenoiser(network, vocabulary.num_tokens, self.offset)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("simple loss", _SimpleLoss(), steps),)

    def measure(self, num_tokens: int) -> Variational:
        return Variational(even=True)

    def sampler(self, num_tokens: int) -> GaussianAncestral:
        return GaussianAncestral(clamp=self.clamp)
