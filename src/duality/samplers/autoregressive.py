"""Autoregressive sampling: one token after another, each from the belief given the ones before it.

The network caches keys and values of earlier tokens (``networks.dit._KVCache``): a step computes one token, not the
whole prefix. The number of steps is the number of tokens. A tail concerns the last token only; the greedy and the
posterior tail are the same, as no noisy token stands where it is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from duality.denoisers.wrapping import network_of
from duality.devices import finite
from duality.diffusion import draws
from duality.fused.lazy import belief_of
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Prefix, Tail


@dataclass(frozen=True)
class _PrefixState:
    """The tokens so far, (B, n), and the network's input for the next one."""

    ids: Tensor
    prefix: Prefix


@dataclass(frozen=True)
class Autoregressive:
    """Left to right. ``begin`` is the state that begins a sequence."""

    begin: int

    def start(self, denoiser: AnyDenoiser, length: int, steps: int, noise: Noise) -> _PrefixState:
        if steps != length:
            raise ValueError(
                f"steps is {steps}: an autoregressive model writes one token per network call, so {length} tokens take "
                f"{length} steps; leave steps out"
            )
        network = network_of(denoiser)
        if not network.causal:
            raise ValueError(
                "the autoregressive sampler needs a causal network: sample this model with its own sampler"
            )
        batch, device = len(noise.keys), noise.keys.device
        first = torch.full((batch, 1), self.begin, dtype=torch.int64, device=device)
        return _PrefixState(first[:, :0], Prefix(first, 0, network.empty_cache(batch, length)))

    def step(
        self, denoiser: AnyDenoiser, state: _PrefixState, alpha_t: Tensor, alpha_s: Tensor, noise: Noise
    ) -> _PrefixState:
        return self.append(denoiser, state, alpha_t, False, noise)

    def last(self, denoiser: AnyDenoiser, state: _PrefixState, alpha_t: Tensor, tail: Tail, noise: Noise) -> Tensor:
        return self.append(denoiser, state, alpha_t, tail != "ancestral", noise).ids

    def append(
        self, denoiser: AnyDenoiser, state: _PrefixState, alpha: Tensor, greedy: bool, noise: Noise
    ) -> _PrefixState:
        """One more token."""
        log_p = finite(belief_of(denoiser, state.prefix, alpha).log_probs())
        token = log_p.argmax(-1) if greedy else draws.categorical(log_p.exp(), noise.uniform("draw", 1))
        prefix = replace(state.prefix, ids=token, position=state.prefix.position + 1)
        return _PrefixState(torch.cat([state.ids, token], 1), prefix)

    def tokens(self, denoiser: AnyDenoiser, state: _PrefixState) -> Tensor:
        return state.ids

    def steps(self, length: int, wanted: int | None = None) -> int:
        return length
