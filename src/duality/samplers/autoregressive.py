"""Autoregressive sampling: one token after another, each from the belief given the ones before it.

The network keeps keys and values of what it has read (``backbones.dit.Memory``): a step costs one token, not the
whole prefix. There is nothing to choose about steps: as many as tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from duality.denoisers.wrapping import bare
from duality.diffusion import draws
from duality.fused.lazy import belief_of
from duality.noise import Noise
from duality.protocols import Denoiser, Prefix


@dataclass(frozen=True)
class Written:
    """What has been written, (B, n), and the network's memory of it."""

    ids: Tensor
    prefix: Prefix


@dataclass(frozen=True)
class Autoregressive:
    """Left to right. ``begin`` is the state that begins a sequence."""

    begin: int

    def start(self, denoiser: Any, length: int, steps: int, noise: Noise) -> Written:
        if steps != length:
            raise ValueError(
                f"steps is {steps}: an autoregressive model writes one token per network call, so {length} tokens take "
                f"{length} steps; leave steps out"
            )
        batch, device = len(noise.keys), noise.keys.device
        first = torch.full((batch, 1), self.begin, dtype=torch.int64, device=device)
        memory = bare(denoiser).backbone.memory(batch, length)
        return Written(first[:, :0], Prefix(first, 0, memory))

    def step(self, denoiser: Denoiser, state: Written, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Written:
        return self.append(denoiser, state, alpha_t, False, noise)

    def last(self, denoiser: Denoiser, state: Written, alpha_t: Tensor, greedy: bool, noise: Noise) -> Tensor:
        return self.append(denoiser, state, alpha_t, greedy, noise).ids

    def append(self, denoiser: Denoiser, state: Written, alpha: Tensor, greedy: bool, noise: Noise) -> Written:
        """One more token."""
        log_p = draws.finite(belief_of(denoiser, state.prefix, alpha).log_probs())
        token = log_p.argmax(-1) if greedy else draws.categorical(log_p.exp(), noise.uniform("draw", 1))
        prefix = replace(state.prefix, ids=token, position=state.prefix.position + 1)
        return Written(torch.cat([state.ids, token], 1), prefix)

    def tokens(self, denoiser: Denoiser, state: Written) -> Tensor:
        return state.ids

    def default_steps(self, length: int) -> int:
        return length
