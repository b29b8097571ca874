"""Where noise goes: q(z | x) = alpha x + (1 - alpha) prior, position by position.

``Uniform`` replaces a token by one drawn from the whole vocabulary, and may change it again later: such models can
correct themselves. ``GaussianUniform`` is the same noise by the duality. ``Absorbing`` replaces a token by the mask
token, the last state, which no text contains.

A process is its number of states and its prior; it knows alpha and never t. ``over(num_tokens)`` is the process for a
vocabulary; absorbing noise adds the mask token to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.diffusion import gaussian
from duality.noise import Noise
from duality.protocols import Process


def prior_on(process: Process, device: torch.device) -> Tensor:
    """The prior of all states, (K,), made on a device, so that nothing is copied to it."""
    return process.prior_of(torch.arange(process.vocab_size, device=device))


@dataclass(frozen=True)
class Uniform:
    """prior = 1 / K on every token."""

    vocab_size: int

    def __post_init__(self) -> None:
        if self.vocab_size < 2:
            raise ValueError(f"vocab_size is {self.vocab_size}: uniform noise needs at least 2 tokens")

    @staticmethod
    def over(num_tokens: int) -> Uniform:
        return Uniform(num_tokens)

    @property
    def mask_id(self) -> None:
        return None

    def prior(self) -> Tensor:
        return torch.full((self.vocab_size,), 1 / self.vocab_size, dtype=torch.float64)

    def prior_of(self, z: Tensor) -> Tensor:
        return torch.full(z.shape, 1 / self.vocab_size, dtype=torch.float64, device=z.device)

    def sample_prior(self, length: int, noise: Noise) -> Tensor:
        return noise.integers("prior", self.vocab_size, length)

    def corrupt(self, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor:
        replaced = noise.uniform("replace", x.shape[1]) >= alpha[:, None]
        return torch.where(replaced, self.sample_prior(x.shape[1], noise), x)


@dataclass(frozen=True)
class GaussianUniform(Uniform):
    """``Uniform`` by the duality: z is the argmax of Gaussian latents at the mu with T(mu) = alpha. Equal in law."""

    def corrupt(self, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor:
        mu = gaussian.inverse_level(alpha.clamp_max(1 - 2**-53), self.vocab_size)[:, None]  # at 1, mu is infinite
        return gaussian.coupled_argmax(x, mu, mu, self.vocab_size, noise)[0]


@dataclass(frozen=True)
class Absorbing:
    """prior = the mask token, which is state K - 1 of K."""

    vocab_size: int

    def __post_init__(self) -> None:
        if self.vocab_size < 2:
            raise ValueError(f"vocab_size is {self.vocab_size}: absorbing noise needs a token and the mask token")

    @staticmethod
    def over(num_tokens: int) -> Absorbing:
        return Absorbing(num_tokens + 1)

    @property
    def mask_id(self) -> int:
        return self.vocab_size - 1

    def prior(self) -> Tensor:
        prior = torch.zeros(self.vocab_size, dtype=torch.float64)
        prior[self.mask_id] = 1.0
        return prior

    def prior_of(self, z: Tensor) -> Tensor:
        return (z == self.mask_id).to(torch.float64)

    def sample_prior(self, length: int, noise: Noise) -> Tensor:
        return torch.full((len(noise.keys), length), self.mask_id, dtype=torch.int64, device=noise.keys.device)

    def corrupt(self, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor:
        masked = noise.uniform("replace", x.shape[1]) >= alpha[:, None]
        return torch.where(masked, self.mask_id, x)
