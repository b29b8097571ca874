"""A second backbone: two convolutions over the sequence. It has no attention and no cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from duality.protocols import Dropout, Labels, Latent, TopK, Valid


@dataclass(frozen=True)
class Mixer:
    """The configuration; ``build`` makes the network."""

    width: int = 24
    kernel: int = 5

    def build(
        self, num_states: int, *, causal: bool = False, input_width: int | None = None, num_labels: int = 0
    ) -> MixerNetwork:
        if causal or input_width is not None:
            raise ValueError("Mixer reads tokens in both directions: choose another backbone for this method")
        return MixerNetwork(self, num_states, num_labels)


class MixerNetwork(nn.Module):
    """Embedding, noise level and label added, two convolutions, and the head."""

    def __init__(self, config: Mixer, num_states: int, num_labels: int):
        super().__init__()
        self.num_states, self.num_labels, self.causal = num_states, num_labels, False
        self.embedding = nn.Embedding(num_states, config.width)
        self.label = nn.Embedding(num_labels + 1, config.width)
        self.level = nn.Linear(1, config.width)
        self.mix = nn.Sequential(
            nn.Conv1d(config.width, config.width, config.kernel, padding="same"),
            nn.GELU(),
            nn.Conv1d(config.width, config.width, config.kernel, padding="same"),
        )
        self.head = nn.Linear(config.width, num_states)

    def hidden(
        self, z: Latent, condition: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Tensor:
        if isinstance(z, TopK):
            x = (self.embedding(z.ids) * z.weights[..., None].to(self.embedding.weight.dtype)).sum(-2)
        else:
            assert isinstance(z, Tensor)
            x = self.embedding(z)
        known = torch.full((len(x),), self.num_labels) if labels is None else labels
        x = x + self.level(condition.to(x.dtype)[:, None])[:, None] + self.label(known)[:, None]
        if valid is not None:
            x = x * valid[..., None].to(x.dtype)
        mixed: Tensor = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return mixed

    def empty_cache(self, batch: int, length: int) -> object:
        raise ValueError("Mixer keeps no cache: it is not causal")

    def prepare(self, *, recompute: bool, compile: bool) -> None:
        if recompute or compile:
            raise ValueError("Mixer has no training.recompute and no training.compile: leave both false")
