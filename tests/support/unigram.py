"""A process that the library does not know: its noise has a unigram law, with a probability for each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.diffusion.draws import categorical
from duality.noise import Noise


@dataclass(frozen=True)
class Unigram:
    """prior(v) is proportional to 1 / (v + 1)."""

    vocab_size: int

    @staticmethod
    def over(num_tokens: int) -> Unigram:
        return Unigram(num_tokens)

    @property
    def mask_id(self) -> None:
        return None

    def prior(self) -> Tensor:
        weights = 1 / torch.arange(1, self.vocab_size + 1, dtype=torch.float64)
        return weights / weights.sum()

    def prior_of(self, z: Tensor) -> Tensor:
        return self.prior().to(z.device)[z]

    def sample_prior(self, length: int, noise: Noise) -> Tensor:
        u = noise.uniform("prior", length)
        return categorical(self.prior().expand(*u.shape, -1), u)

    def corrupt(self, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor:
        replaced = noise.uniform("replace", x.shape[1]) >= alpha[:, None]
        return torch.where(replaced, self.sample_prior(x.shape[1], noise), x)
