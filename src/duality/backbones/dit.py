"""The diffusion transformer of the paper: bidirectional attention with rotary positions, conditioned on noise level.

Each block is x + gate * attention(modulate(norm(x))) then x + gate * mlp(modulate(norm(x))); shift, scale and gate are
linear in an embedding of the noise level -log(alpha) (adaLN). Modulations and the output head start at zero, so that
the untrained network is the identity followed by the uniform belief.

The input is a token id per position, or a ``TopK`` mixture of tokens whose embedding is the weighted sum of rows.
Padding (mask False) is hidden from attention. Dropout, if any, is drawn from the sample's own ``Noise``: it does not
depend on how a batch is divided, and without noise there is none, so there is no train/eval mode to forget.

``conv`` adds a short convolution to the embedded tokens. The paper's sizes have none; the laptop sizes do, because
learning from scratch that neighbours matter takes attention over a million tokens, which is most of a laptop's budget.
``embedding_std`` is the spread of the first embeddings; None is the released code's, 1 / sqrt(3 width). At the high
learning rates of short runs such small rows are scrambled faster than they are learnt, and 1 does better.

Names in the code: B batch, L length, D width, H heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duality.noise import Noise
from duality.protocols import Latent, TopK


@dataclass(frozen=True)
class DiT:
    """The configuration; ``build(vocab_size)`` makes the network."""

    width: int = 768
    depth: int = 12
    heads: int = 12
    time_width: int = 128
    dropout: float = 0.1
    mlp_ratio: int = 4
    conv: int = 0
    embedding_std: float | None = None

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(
                f"width {self.width} over {self.heads} heads: the width of a head must be a whole even number"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: it must be in [0, 1)")
        if min(self.width, self.depth, self.heads, self.time_width, self.mlp_ratio) < 1:
            raise ValueError(f"{self}: every size must be at least 1")
        if self.conv < 0 or (self.conv and self.conv % 2 == 0):
            raise ValueError(f"conv is {self.conv}: its width must be odd, or 0 for none")
        if self.embedding_std is not None and not self.embedding_std > 0:
            raise ValueError(f"embedding_std is {self.embedding_std}: it must be positive, or none")

    def build(self, vocab_size: int) -> Network:
        return Network(self, vocab_size)


SIZES: dict[str, DiT] = {
    "nano": DiT(width=64, depth=2, heads=2, time_width=32, dropout=0.0, conv=3, embedding_std=1.0),
    "laptop": DiT(width=128, depth=4, heads=4, time_width=32, dropout=0.0, conv=3, embedding_std=1.0),
    "tiny": DiT(width=256, depth=8, heads=8),
    "small": DiT(),
    "medium": DiT(width=1024, depth=24, heads=16),
}


class Network(nn.Module):
    """Token embedding, blocks, final norm, and the output projection ``head`` to the vocabulary."""

    def __init__(self, config: DiT, vocab_size: int):
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = nn.Parameter(torch.empty(vocab_size, config.width))
        self.conv = LocalMixing(config.width, config.conv) if config.conv else None
        self.time = TimeEmbedding(config.time_width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.modulation = nn.Linear(config.time_width, 2 * config.width)
        self.head = nn.Linear(config.width, vocab_size)
        nn.init.normal_(self.embedding, std=config.embedding_std or (3 * config.width) ** -0.5)
        silence(self.modulation)
        silence(self.head)

    def embed(self, z: Latent) -> Tensor:
        """Rows of the embedding, or weighted sums of rows: (B, L, D)."""
        if isinstance(z, TopK):
            batch, length, kept = z.ids.shape
            bags = F.embedding_bag(
                z.ids.reshape(-1, kept),
                self.embedding,
                mode="sum",
                per_sample_weights=z.weights.reshape(-1, kept).to(self.embedding.dtype),
            )
            return bags.view(batch, length, -1)
        return F.embedding(z, self.embedding)

    def hidden(self, z: Latent, condition: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        """What the head projects: (B, L, D). ``condition`` is the noise level -log(alpha), (B,)."""
        x = self.embed(z)
        if self.conv is not None:
            x = self.conv(x, mask)
        rotation = rotary_angles(x.shape[1], self.config.width // self.config.heads, x)
        time = self.time(condition.to(x.dtype))
        # One row of keys per sample, shared by heads and queries; None keeps the fast attention path.
        attend = None if mask is None else mask[:, None, None, :]
        active = dropout if self.config.dropout > 0 else None
        for index, block in enumerate(self.blocks):
            x = block(x, time, rotation, attend, None if active is None else active.fold(index))
        shift, scale = self.modulation(time)[:, None].chunk(2, -1)
        return modulate(self.norm(x), shift, scale)

    def forward(self, z: Latent, condition: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        """Logits (B, L, K)."""
        logits: Tensor = self.head(self.hidden(z, condition, mask, dropout))
        return logits


class Block(nn.Module):
    """Attention and MLP, each modulated before and gated after."""

    def __init__(self, config: DiT):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.dropout = config.dropout
        self.norm_attention = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, config.mlp_ratio * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.mlp_ratio * width, width),
        )
        self.modulation = nn.Linear(config.time_width, 6 * width)
        silence(self.modulation)

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        rotation: tuple[Tensor, Tensor],
        attend: Tensor | None,
        noise: Noise | None,
    ) -> Tensor:
        modulation: Tensor = self.modulation(time)[:, None]
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation.chunk(6, -1)
        update = self.attention(modulate(self.norm_attention(x), shift_a, scale_a), rotation, attend)
        x = x + gate_a * self.drop(update, noise, "attention")
        update = self.mlp(modulate(self.norm_mlp(x), shift_m, scale_m))
        return x + gate_m * self.drop(update, noise, "mlp")

    def attention(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(rotate(q, rotation), rotate(k, rotation), v, attn_mask=attend)
        update: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return update

    def drop(self, x: Tensor, noise: Noise | None, tag: str) -> Tensor:
        if noise is None:
            return x
        return x * noise.keep(tag, 1 - self.dropout, *x.shape[1:]).to(x.dtype)


class LocalMixing(nn.Module):
    """x + a depthwise convolution over neighbouring positions."""

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        real = x if mask is None else x * mask[..., None].to(x.dtype)
        mixed: Tensor = self.depthwise(real.transpose(1, 2))
        return x + mixed.transpose(1, 2)


class TimeEmbedding(nn.Module):
    """Cosines and sines of the noise level at 128 frequencies, then a small MLP."""

    def __init__(self, width: int, num_features: int = 256):
        super().__init__()
        half = num_features // 2
        self.frequencies = [math.exp(-math.log(1e4) * i / half) for i in range(half)]
        self.mlp = nn.Sequential(nn.Linear(num_features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())

    def forward(self, condition: Tensor) -> Tensor:
        angles = condition[:, None] * torch.tensor(self.frequencies, dtype=condition.dtype, device=condition.device)
        embedded: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], -1))
        return embedded


def silence(linear: nn.Linear) -> None:
    """Start a projection at zero."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x (1 + scale) + shift."""
    return torch.addcmul(shift, x, 1 + scale)


def rotary_angles(length: int, head_width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """(cos, sin) of position x frequency, each (L, head_width), the two halves alike; float64, then rounded."""
    frequencies = 1e4 ** (-torch.arange(0, head_width, 2, dtype=torch.float64, device=like.device) / head_width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64, device=like.device), frequencies)
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions, halves not interleaved: x cos + (-x_2, x_1) sin."""
    cos, sin = (part.to(x.dtype) for part in rotation)  # under autocast x is bfloat16 here
    first, second = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat([-second, first], -1), sin)
