"""Gaussian diffusion over vectors: a token's latent is a noisy copy of its embedding e.

    q(z_t | x) = N(alpha e, sigma^2 I),   alpha^2 = sigmoid(-gamma),   sigma^2 = sigmoid(gamma),   gamma = -log SNR

gamma rises with t from gamma_0 to gamma_1. With x_hat(z_t, t) the network's prediction of e, the variational bound
(Kingma et al., 2021) is, per token,

    -log p(x) <= KL(q(z_1 | x) || N(0, I)) + E_t 1/2 gamma'(t) exp(-gamma) ||e - x_hat||^2 - E log p(x | z_0)

The middle term is an integral over gamma: how t runs through [gamma_0, gamma_1] changes its variance, not its value.
What must hold: ``posterior`` is Bayes' rule for Gaussians, and a perfect x_hat makes the bound the entropy of the data
plus KL(q(z_1) || N(0, I)). Both are tested.

``VectorDenoiser`` is what a model of this kind answers; ``Variational`` measures one, ``Posterior`` writes with one.
gamma is float64, (B,); vectors are (B, L, d) in the network's precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from duality import functional
from duality.bounds import dropout_of, summed
from duality.noise import Noise
from duality.protocols import Ends, Kind, Loss


def levels(gamma: Tensor) -> tuple[Tensor, Tensor]:
    """(alpha, sigma) of gamma."""
    return torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()


def spread(level: Tensor, like: Tensor) -> Tensor:
    """A number per sample, (B,), to meet vectors (B, L, d) in their precision."""
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
    spare = -signal - torch.nn.functional.logsigmoid(gamma)
    return 0.5 * (e.shape[-1] * spare + signal * e.double().square().sum(-1))


def diffusion_nats(e: Tensor, x_hat: Tensor, gamma: Tensor, slope: Tensor) -> Tensor:
    """1/2 gamma' exp(-gamma) ||e - x_hat||^2 per token and unit of time, (B, L) float64."""
    return 0.5 * (slope * torch.exp(-gamma))[:, None] * (e - x_hat).double().square().sum(-1)


def cross_entropy(logits: Tensor, x: Tensor) -> Tensor:
    """-log p(x), (B, L) float64."""
    return -torch.log_softmax(logits, -1).gather(-1, x[..., None])[..., 0].double()


def nearest(vectors: Tensor, embeddings: Tensor) -> Tensor:
    """The token whose embedding is nearest to each vector, (B, L)."""
    return (vectors @ embeddings.T - 0.5 * embeddings.square().sum(-1)).argmax(-1)


@dataclass(frozen=True)
class Prediction:
    """``x_hat`` (B, L, d), the predicted embedding, and ``logits`` (B, L, K) of the tokens it stands for."""

    x_hat: Tensor
    logits: Tensor


@runtime_checkable
class VectorDenoiser(Protocol):
    """Where a vector came from.

    ``guess`` is an earlier prediction for networks that look at one (self-conditioning); None lets such a network make
    its own, in a pass of its own. ``decode`` gives the logits of p(x | z_0).
    """

    def embeddings(self) -> Tensor: ...
    def gamma(self, t: Tensor) -> tuple[Tensor, Tensor]: ...
    def predict(
        self,
        z: Tensor,
        gamma: Tensor,
        mask: Tensor | None = None,
        dropout: Noise | None = None,
        guess: Tensor | None = None,
    ) -> Prediction: ...
    def decode(self, z: Tensor, mask: Tensor | None = None) -> Tensor: ...


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


@dataclass(frozen=True)
class Cloud:
    """What the sampler carries: the noisy vectors ``z`` and the last prediction ``guess``, both (B, L, d)."""

    z: Tensor
    guess: Tensor


@dataclass(frozen=True)
class Posterior:
    """Ancestral sampling of vectors: z_s ~ q(z_s | z_t, e = x_hat), and at the last level a token from the logits.

    The signal levels of ``generate`` are read as times, t = 1 - alpha (``LogLinear(eps=0)``). With ``clamp``, x_hat is
    rounded to the nearest embedding first (Diffusion-LM's clamping trick).
    """

    clamp: bool = False

    def start(self, denoiser: VectorDenoiser, length: int, steps: int, noise: Noise) -> Cloud:
        if not isinstance(denoiser, VectorDenoiser):
            raise ValueError(
                f"the sampler of Gaussian models moves vectors, and a {type(denoiser).__name__} reads tokens: "
                "sample it with the sampler of its own method"
            )
        table = denoiser.embeddings()
        z = noise.normal("start", length, table.shape[-1]).to(table.dtype)
        return Cloud(z, torch.zeros_like(z))

    def step(self, denoiser: VectorDenoiser, state: Cloud, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Cloud:
        gamma_t, gamma_s = denoiser.gamma(1 - alpha_t)[0], denoiser.gamma(1 - alpha_s)[0]
        x_hat = functional.finite(denoiser.predict(state.z, gamma_t, guess=state.guess).x_hat)
        table = denoiser.embeddings()
        target = table[nearest(x_hat, table)] if self.clamp else x_hat
        mean, deviation = posterior(state.z, target, gamma_t, gamma_s)
        return Cloud(mean + deviation * noise.normal("posterior", *mean.shape[1:]).to(mean.dtype), x_hat)

    def last(self, denoiser: VectorDenoiser, state: Cloud, alpha_t: Tensor, greedy: bool, noise: Noise) -> Tensor:
        gamma = denoiser.gamma(1 - alpha_t)[0]
        logits = functional.finite(denoiser.predict(state.z, gamma, guess=state.guess).logits)
        if greedy:
            return logits.argmax(-1)
        return functional.categorical(torch.softmax(logits, -1), noise.uniform("draw", logits.shape[1]))

    def tokens(self, denoiser: VectorDenoiser, state: Cloud) -> Tensor:
        return nearest(state.guess, denoiser.embeddings())

    def default_steps(self, length: int) -> int:
        return 32
