"""Gaussian diffusion over vectors: the latent of a token is a noisy copy of its embedding e.

    q(z_t | x) = N(alpha e, sigma^2 I),   alpha^2 = sigmoid(-gamma),   sigma^2 = sigmoid(gamma),   gamma = -log SNR

gamma rises with t from gamma_0 to gamma_1; it is float64, (B,). Vectors are (B, L, d) in the network's precision.
What must hold: ``posterior`` is Bayes' rule for Gaussians.
"""

from __future__ import annotations

import torch
from torch import Tensor


def levels(gamma: Tensor) -> tuple[Tensor, Tensor]:
    """(alpha, sigma) of gamma."""
    return torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()


def spread(level: Tensor, like: Tensor) -> Tensor:
    """A number per sample, (B,), in the shape and precision of vectors (B, L, d)."""
    return level[:, None, None].to(like.dtype)


def diffuse(e: Tensor, gamma: Tensor, eps: Tensor) -> Tensor:
    """z = alpha e + sigma eps."""
    alpha, sigma = levels(gamma)
    return spread(alpha, e) * e + spread(sigma, e) * eps.to(e.dtype)


def posterior(z: Tensor, x_hat: Tensor, gamma_t: Tensor, gamma_s: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (B, L, d) and standard deviation (B, 1, 1) of q(z_s | z_t = z, e = x_hat), gamma_s <= gamma_t."""
    (alpha_t, _), (alpha_s, sigma_s) = levels(gamma_t), levels(gamma_s)
    kept = torch.exp(gamma_s - gamma_t)
    fresh = -torch.expm1(gamma_s - gamma_t)
    mean = spread(alpha_s * kept / alpha_t, z) * z + spread(alpha_s * fresh, z) * x_hat
    return mean, spread(sigma_s * fresh.sqrt(), z)


def prior_nats(e: Tensor, gamma: Tensor) -> Tensor:
    """KL(N(alpha e, sigma^2 I) || N(0, I)) per token: float64, the shape of e without its last axis.

    ``gamma`` is one number; 1/2 [d (sigma^2 - 1 - log sigma^2) + alpha^2 ||e||^2].
    """
    signal = torch.sigmoid(-gamma)
    excess = -signal - torch.nn.functional.logsigmoid(gamma)
    return 0.5 * (e.shape[-1] * excess + signal * e.double().square().sum(-1))


def diffusion_nats(e: Tensor, x_hat: Tensor, gamma: Tensor, slope: Tensor) -> Tensor:
    """1/2 gamma' exp(-gamma) ||e - x_hat||^2 per token and unit of time, (B, L) float64."""
    return 0.5 * (slope * torch.exp(-gamma))[:, None] * (e - x_hat).double().square().sum(-1)


def cross_entropy(logits: Tensor, x: Tensor) -> Tensor:
    """-log p(x), (B, L) float64."""
    return -torch.log_softmax(logits, -1).gather(-1, x[..., None])[..., 0].double()


def nearest(vectors: Tensor, embeddings: Tensor) -> Tensor:
    """The token whose embedding is nearest to each vector, (B, L)."""
    with torch.autocast(vectors.device.type, enabled=False):  # distances of near tokens differ by little
        return (vectors @ embeddings.T - 0.5 * embeddings.square().sum(-1)).argmax(-1)
