"""The diffusion transformer of the paper: bidirectional attention with rotary positions, conditioned on noise level.

Each block is x + gate * attention(modulate(norm(x))) then x + gate * mlp(modulate(norm(x))); shift, scale and gate are
linear in an embedding of the noise level -log(alpha) (adaLN). Modulations and the output head start at zero, so that
the untrained network is the identity followed by the uniform belief.

The input is a token id per position, or a ``TopK`` mixture of tokens whose embedding is the weighted sum of rows.
Attention ignores padding (``valid`` False). Dropout is drawn from the sample's own ``Noise``, so it does not depend on
how a batch is divided; without noise there is no dropout. There is no train/eval mode.

``conv`` adds a short convolution to the embedded tokens. The paper's sizes have none; the laptop sizes do, because
attention needs over a million tokens to learn that neighbours matter, which is most of the budget of a laptop run.
``embedding_std`` is the standard deviation of the initial embeddings; None is that of the released code,
1 / sqrt(3 width). At the high learning rates of short runs such small embeddings are learned badly, and 1 is better.
``activation`` is that of the MLP: GELU as in the paper, or "relu2", the square of ReLU, which costs a CPU less.

The same blocks make three networks, chosen in ``build``: the diffusion transformer; with ``causal``, an
autoregressive one in which a position depends on earlier positions only and there is no noise level (as in the paper's
baseline), with a ``_KVCache`` of keys and values for sampling; with ``input_width``, one whose input is vectors instead
of tokens, for Gaussian models. ``num_labels`` adds a label to the conditioning; label ``num_labels`` means "no label".

``prepare`` chooses how training computes the blocks. ``recompute`` keeps only the input of each block for the backward
pass and computes the rest again there: the same numbers with less memory in more time. ``compile`` compiles the blocks
with ``torch.compile``: the same numbers up to rounding, faster steps, up to a minute of compilation before the first.

Names in the code: B batch, L length, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from duality.networks.layers import LayerNorm, TimeEmbedding
from duality.networks.residual import Dropped, add_update, draw_dropout
from duality.noise import Noise
from duality.protocols import Dropout, Labels, Latent, Prefix, TopK, Valid

MOST_BLOCKS = 1_000
_Past = tuple[Tensor, Tensor, int] | None  # keys and values of a block, and how many of them there are


class _SquaredReLU(nn.Module):
    """max(x, 0)^2 (So et al., 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": partial(nn.GELU, approximate="tanh"),
    "relu2": _SquaredReLU,
}


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
    activation: Literal["gelu", "relu2"] = "gelu"
    embedding_std: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: it must be in [0, 1)")
        if min(self.width, self.depth, self.heads, self.time_width, self.mlp_ratio) < 1 or self.depth > MOST_BLOCKS:
            raise ValueError(f"{self}: every size must be at least 1, and the depth at most {MOST_BLOCKS}")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(
                f"width {self.width} over {self.heads} heads: the width of a head must be a whole even number"
            )
        if self.conv < 0 or (self.conv and self.conv % 2 == 0):
            raise ValueError(f"conv is {self.conv}: its width must be odd, or 0 for none")
        if self.activation not in _ACTIVATIONS:
            raise ValueError(f"activation is {self.activation!r}: choose from {', '.join(_ACTIVATIONS)}")
        if self.embedding_std is not None and not self.embedding_std > 0:
            raise ValueError(f"embedding_std is {self.embedding_std}: it must be positive, or none")

    def build(
        self, num_states: int, *, causal: bool = False, input_width: int | None = None, num_labels: int = 0
    ) -> DiTNetwork:
        return DiTNetwork(self, num_states, causal, input_width, num_labels)


# Ready-made sizes, each a function that makes the configuration.
_SHORT_RUNS = partial(DiT, time_width=32, dropout=0.0, conv=3, embedding_std=1.0)
nano = partial(_SHORT_RUNS, width=64, depth=2, heads=2)
micro = partial(_SHORT_RUNS, width=128, depth=4, heads=4)
mini = partial(DiT, width=256, depth=8, heads=8)
small = partial(DiT)
medium = partial(DiT, width=1024, depth=24, heads=16)


@dataclass
class _KVCache:
    """The cache of a causal network: keys and values of each block, and the past inputs of the convolution.

    Every token is added in place, so a cache must be used by one sampler only.
    """

    keys: list[Tensor]
    values: list[Tensor]
    embedded: Tensor
    length: int = 0


class DiTNetwork(nn.Module):
    """Token embedding, blocks, final norm, and the output projection ``head`` to the states."""

    def __init__(
        self, config: DiT, num_states: int, causal: bool = False, input_width: int | None = None, num_labels: int = 0
    ):
        super().__init__()
        if causal and num_labels:
            raise ValueError(
                f"{num_labels} labels for a causal network: it has no conditioning to add them to; "
                "use a diffusion method, or data.labels=false"
            )
        self.config = config
        self.num_states = num_states
        self.causal = causal
        self.num_labels = num_labels
        self.recompute = False
        if input_width is None:
            self.embedding = nn.Parameter(torch.empty(num_states, config.width))
        else:
            self.project = nn.Linear(input_width, config.width)
        self.conv = _LocalMixing(config.width, config.conv, causal) if config.conv else None
        if not causal:
            self.time = TimeEmbedding(config.time_width)
        self.blocks = nn.ModuleList(_Block(config, causal) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, bias=False)
        if not causal:
            self.modulation = nn.Linear(config.time_width, 2 * config.width)
            _silence(self.modulation)
        self.head = nn.Linear(config.width, num_states)
        _silence(self.head)
        if input_width is None:
            nn.init.normal_(self.embedding, std=config.embedding_std or (3 * config.width) ** -0.5)
        if num_labels:
            self.label = nn.Embedding(num_labels + 1, config.time_width)
            nn.init.normal_(self.label.weight, std=0.02)

    def embed(self, z: Latent) -> Tensor:
        """Rows of the embedding, weighted sums of rows, or projected vectors: (B, L, D)."""
        if isinstance(z, TopK):
            batch, length, kept = z.ids.shape
            bags = F.embedding_bag(
                z.ids.reshape(-1, kept),
                self.embedding,
                mode="sum",
                per_sample_weights=z.weights.reshape(-1, kept).to(self.embedding.dtype),
            )
            return bags.view(batch, length, -1)
        ids = z.ids if isinstance(z, Prefix) else z
        if ids.is_floating_point():
            projected: Tensor = self.project(ids)
            return projected
        return F.embedding(ids, self.embedding)

    def hidden(
        self, z: Latent, condition: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Tensor:
        """The vectors that the head projects, (B, L, D). ``condition`` is the noise level -log(alpha), (B,)."""
        cache = None
        if isinstance(z, Prefix):  # an autoregressive step
            if not isinstance(z.cache, _KVCache):
                name = type(z.cache).__name__
                raise TypeError(f"the cache of a prefix is a {name}: make it with this network's empty_cache")
            cache = z.cache
        x = self.embed(z)
        if self.conv is not None:
            x = self.conv(x, valid, cache)
        first = 0 if cache is None else cache.length
        rotation = _rotary_angles(first, x.shape[1], self.config.width // self.config.heads, x)
        time = None if self.causal else self.embed_condition(condition.to(x.dtype), labels)
        # One row of keys per sample, shared by heads and queries; None keeps the fast attention path. Padding is at the
        # end of a row, where a causal network does not read it.
        attend = None if valid is None or self.causal else valid[:, None, None, :]
        active = dropout if self.config.dropout > 0 else None
        again = self.recompute and cache is None and torch.is_grad_enabled()
        for index in range(self.config.depth):
            past = None if cache is None else (cache.keys[index], cache.values[index], first)
            inputs = (index, x, time, rotation, attend, active, past)
            if again:
                # All randomness comes from the noise, so there is no generator state to save.
                x = checkpoint(self.through, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                x = self.through(*inputs)
        if cache is not None:
            cache.length += 1
        final: Tensor = self.norm(x)
        if time is None:
            return final
        shift, scale = self.modulation(time)[:, None].chunk(2, -1)
        return _modulate(final, shift, scale)

    def through(
        self,
        index: int,
        x: Tensor,
        time: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        attend: Tensor | None,
        noise: Noise | None,
        past: _Past,
    ) -> Tensor:
        """One block. Its dropout is drawn here: outside the compiled part, inside the part that is recomputed."""
        dropped = None
        if noise is not None:
            own, share = noise.fold(index), 1 - self.config.dropout
            dropped = draw_dropout(own, "attention", share, x), draw_dropout(own, "mlp", share, x)
        after: Tensor = self.blocks[index](x, time, rotation, attend, dropped, past)
        return after

    def hidden_matrices(self) -> list[nn.Parameter]:
        """The matrices of attention and MLP, which Muon can train."""
        linear = (block.get_submodule(name) for block in self.blocks for name in ("qkv", "out", "mlp.0", "mlp.2"))
        return [layer.get_parameter("weight") for layer in linear]

    def prepare(self, *, recompute: bool, compile: bool) -> None:
        """Choose how training computes the blocks: again in the backward pass, compiled by ``torch.compile``."""
        self.recompute = recompute
        if compile:
            for block in self.blocks:
                block.compile()

    def embed_condition(self, condition: Tensor, labels: Labels) -> Tensor:
        """The embedding of noise level and label, (B, time_width)."""
        time: Tensor = self.time(condition)
        if not self.num_labels:
            if labels is not None:
                raise ValueError("labels for a network without classes: train one with data.labels=true")
            return time
        known = torch.full_like(condition, self.num_labels, dtype=torch.int64) if labels is None else labels
        label: Tensor = self.label(known)
        return time + label

    def forward(
        self, z: Latent, condition: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Tensor:
        """Logits (B, L, K)."""
        logits: Tensor = self.head(self.hidden(z, condition, valid, dropout, labels))
        return logits

    def empty_cache(self, batch: int, length: int) -> _KVCache:
        """A cache for ``length`` tokens of ``batch`` sequences, in the type that products have here."""
        heads, width, like = self.config.heads, self.config.width // self.config.heads, self.norm.weight
        dtype = self.head(like).dtype

        def buffer() -> list[Tensor]:
            return [like.new_empty(batch, heads, length, width, dtype=dtype) for _ in self.blocks]

        past = max(self.config.conv - 1, 0)
        return _KVCache(buffer(), buffer(), like.new_zeros(batch, past, self.config.width))


class _Block(nn.Module):
    """Attention and MLP, each modulated before and gated after; in a causal network, neither."""

    def __init__(self, config: DiT, causal: bool = False):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.causal = causal
        self.norm_attention = LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_mlp = LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, config.mlp_ratio * width),
            _ACTIVATIONS[config.activation](),
            nn.Linear(config.mlp_ratio * width, width),
        )
        if not causal:
            self.modulation = nn.Linear(config.time_width, 6 * width)
            _silence(self.modulation)

    def forward(
        self,
        x: Tensor,
        time: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        attend: Tensor | None,
        dropped: tuple[Dropped, Dropped] | None,
        past: _Past = None,
    ) -> Tensor:
        """``dropped``: what is dropped after attention and after the MLP; None drops nothing."""
        dropped_a, dropped_m = dropped or (None, None)
        if time is None:
            x = add_update(x, self.attention(self.norm_attention(x), rotation, attend, past), None, dropped_a)
            return add_update(x, self.mlp(self.norm_mlp(x)), None, dropped_m)
        modulation: Tensor = self.modulation(time)[:, None]
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation.chunk(6, -1)
        update = self.attention(_modulate(self.norm_attention(x), shift_a, scale_a), rotation, attend)
        x = add_update(x, update, gate_a, dropped_a)
        update = self.mlp(_modulate(self.norm_mlp(x), shift_m, scale_m))
        return add_update(x, update, gate_m, dropped_m)

    def attention(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Tensor | None, past: _Past = None
    ) -> Tensor:
        batch, length, width = x.shape
        qk, v = self.qkv(x).view(batch, length, 3, self.heads, -1).split((2, 1), 2)
        q, k = _rotate(qk, rotation).permute(2, 0, 3, 1, 4)
        v = v[:, :, 0].transpose(1, 2)
        if past is not None:
            keys, values, first = past
            keys[:, :, first : first + length], values[:, :, first : first + length] = k, v
            k, v = keys[:, :, : first + length], values[:, :, : first + length]
        causal = self.causal and past is None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attend, is_causal=causal)
        update: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return update


class _LocalMixing(nn.Module):
    """x + a depthwise convolution over neighbouring positions; in a causal network over earlier positions."""

    def __init__(self, width: int, kernel: int, causal: bool = False):
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width, bias=False)
        self.around = (kernel - 1, 0) if causal else (kernel // 2, kernel // 2)

    def forward(self, x: Tensor, valid: Valid, cache: _KVCache | None = None) -> Tensor:
        if cache is None:
            real = x if valid is None else x * valid[..., None].to(x.dtype)
            wide = F.pad(real.transpose(1, 2), self.around)
        else:
            window = torch.cat([cache.embedded, x], 1)
            cache.embedded = window[:, 1:]
            wide = window.transpose(1, 2)
        mixed: Tensor = self.depthwise(wide)
        return x + mixed.transpose(1, 2)


def _silence(linear: nn.Linear) -> None:
    """Initialise a projection with zeros."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)


def _modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x (1 + scale) + shift."""
    return torch.addcmul(shift, x, 1 + scale)


def _rotary_angles(first: int, length: int, head_width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """(cos, sin) of position x frequency, each (L, 1, 1, head_width / 2); float64, then rounded.

    Positions are ``first``, ``first + 1``, ...
    """
    frequencies = 1e4 ** (-torch.arange(0, head_width, 2, dtype=torch.float64, device=like.device) / head_width)
    angles = torch.outer(torch.arange(first, first + length, dtype=torch.float64, device=like.device), frequencies)
    return angles.cos().to(like.dtype)[:, None, None], angles.sin().to(like.dtype)[:, None, None]


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions of queries and keys together, (B, L, 2, H, head_width); halves not interleaved.

    (x_1, x_2) becomes (x_1 cos - x_2 sin, x_2 cos + x_1 sin).
    """
    cos, sin = (part.to(x.dtype) for part in rotation)  # under autocast x is bfloat16 here
    first, second = x.chunk(2, -1)
    turned = torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)
    return torch.cat(turned, -1)
