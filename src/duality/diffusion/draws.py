"""Exact draws from categorical laws, by inverting the distribution function in float64.

float32 Gumbel noise cuts the tail off: a Zipf law over 50 257 tokens then loses tokens that must appear. Here a state
of probability 0 is never drawn, and a state of probability 1e-12 is drawn that often.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 256


def block_rows(num_states: int, device: torch.device) -> int:
    """How many rows of a belief to work on at a time.

    On a CPU a few megabytes, which stay in its cache; elsewhere enough to keep a large device busy.
    """
    return max((1 << (20 if device.type == "cpu" else 26)) // num_states, 1)


def categorical(probs: Tensor, u: Tensor) -> Tensor:
    """Exact draw from rows of (unnormalised) ``probs`` (..., K) by inverting the distribution function at u."""
    num_states = probs.shape[-1]
    size = block_rows(num_states, probs.device)
    rows = zip(torch.split(probs.reshape(-1, num_states), size), torch.split(u.reshape(-1), size))
    return torch.cat([_draw_states(part, draws) for part, draws in rows]).view(u.shape)


def _draw_states(probs: Tensor, u: Tensor) -> Tensor:
    """A state for each row of ``probs`` (n, K): the block of states it is in, then the state.

    A block's sum is as precise as its largest part, whatever the size of the others, and sums of blocks are float64.
    """
    num_states, whole = probs.shape[-1], probs.shape[-1] // _BLOCK
    inner, last = probs[:, : whole * _BLOCK].reshape(len(probs), whole, _BLOCK), probs[:, whole * _BLOCK :]
    cdf = torch.cat([inner.sum(-1), last.sum(-1, keepdim=True)], -1).double().cumsum(-1)
    target = u[:, None] * cdf[:, -1:]
    block = _first_above(cdf, target)
    below = torch.where(block > 0, cdf.gather(-1, (block - 1).clamp_min(0)), 0.0)
    states = block * _BLOCK + torch.arange(min(_BLOCK, num_states), device=probs.device)
    mass = torch.where(states < num_states, probs.gather(-1, states.clamp_max(num_states - 1)), 0.0)
    return (block * _BLOCK + _first_above(mass.double().cumsum(-1), target - below))[:, 0]


def _first_above(cdf: Tensor, target: Tensor) -> Tensor:
    """The first place (n, 1) at which ``cdf`` (n, m), which rises, exceeds ``target`` (n, 1)."""
    total = cdf[:, -1:]
    # Rounding may lift the target to the total itself, where no state is left to choose.
    return torch.searchsorted(cdf, torch.minimum(target, torch.nextafter(total, torch.zeros_like(total))), right=True)


def draw_states(log_p: Tensor, rows: Tensor, u: Tensor) -> Tensor:
    """A state from each of ``rows`` (rising) of the log beliefs (n, K), at ``u`` (as many); a few rows at a time."""
    size = block_rows(log_p.shape[-1], log_p.device)
    if len(rows) == len(log_p):  # all of them, which need not be copied
        parts = zip(torch.split(log_p, size), torch.split(u, size))
        return torch.cat([categorical(part.exp(), draws) for part, draws in parts])
    chosen = zip(torch.split(rows, size), torch.split(u, size))
    return torch.cat([categorical(log_p.index_select(0, part).exp_(), draws) for part, draws in chosen])
