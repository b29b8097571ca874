"""The only sampling loop: start from the prior, take ``steps`` steps, end at alpha = 1.

``steps`` is exactly the number of network calls (or less, where a ``Memoized`` belief is reused). The last step goes to
alpha = 1. There the ``ancestral`` tail draws, the ``greedy`` tail (the paper's Greedy-Tail sampler) takes the argmax of
the belief, and the ``posterior`` tail the argmax of the belief with the evidence of the noisy token itself.

Sample i of a seed has its own noise: it is the same whether it is generated alone or among a thousand. The ranks of a
job (``ranks``) write a batch each and get all samples; ``watch`` gets the states of a rank's own batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, get_args

import torch
from torch import Tensor

from duality.devices import refused_at_end
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Grid, Sampler, Schedule, Tail
from duality.ranks import job
from duality.samplers.grids import LINEAR


@dataclass(frozen=True)
class Frame:
    """The state after a step, for ``watch``; step 0 is the start. ``first`` is the index of the first sample."""

    step: int
    steps: int
    alpha: float
    tokens: Tensor
    first: int


def levels(schedule: Schedule, steps: int, grid: Grid = LINEAR) -> Tensor:
    """The signal levels of a grid of times; the last is 1 for every schedule."""
    if steps < 1:
        raise ValueError(f"steps is {steps}: generation needs at least 1 step, which is 1 network call")
    # Each different time is evaluated once: equal times must give exactly equal levels.
    times, index = torch.unique_consecutive(grid(schedule, steps), return_inverse=True)
    alphas = schedule.alpha(times)[index]
    alphas[-1] = 1.0
    return alphas


class GenerateOptions(TypedDict, total=False):
    """How ``generate`` goes through the steps, as keywords."""

    seed: int
    tail: Tail
    grid: Grid
    batch_size: int
    device: torch.device | str
    watch: Callable[[Frame], None] | None


@torch.no_grad()
def generate(
    denoiser: AnyDenoiser,
    schedule: Schedule,
    sampler: Sampler,
    *,
    num: int,
    length: int,
    steps: int,
    seed: int = 0,
    tail: Tail = "ancestral",
    grid: Grid = LINEAR,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    watch: Callable[[Frame], None] | None = None,
    each: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """``num`` sequences of ``length`` tokens, (num, length) int64; ``watch`` gets the start and every later state.

    ``each`` gets every batch of sequences as soon as it is written.
    """
    if not 0 < num < 1 << 63 or length < 1 or batch_size < 1:
        counts = f"num is {num}, length {length}, batch_size {batch_size}"
        raise ValueError(f"{counts}: each must be at least 1, and num less than 2**63")
    if tail not in get_args(Tail):
        raise ValueError(f"tail is {tail!r}: choose {', '.join(get_args(Tail))}")
    on_host = levels(schedule, steps, grid)
    alphas, place = on_host.to(device), job()

    def write(start: int) -> Tensor:
        """The batch of samples that begins with this one."""
        index = torch.arange(start, min(start + batch_size, num), device=device)
        noise = Noise.of(seed, 0, index).fold("generate")
        state = sampler.start(denoiser, length, steps, noise)
        if watch is not None:
            watch(Frame(0, steps, float(on_host[0]), sampler.tokens(denoiser, state), start))
        for step in range(steps - 1):
            alpha_t, alpha_s = alphas[step].expand(len(index)), alphas[step + 1].expand(len(index))
            state = sampler.step(denoiser, state, alpha_t, alpha_s, noise.fold(step))
            if watch is not None:
                watch(Frame(step + 1, steps, float(on_host[step + 1]), sampler.tokens(denoiser, state), start))
        alpha_t = alphas[steps - 1].expand(len(index))
        tokens = sampler.last(denoiser, state, alpha_t, tail, noise.fold(steps - 1))
        if watch is not None:
            watch(Frame(steps, steps, 1.0, tokens, start))
        return tokens

    starts, made = range(0, num, batch_size), list[Tensor]()
    for turn in range(0, len(starts), place.size):
        together = starts[turn : turn + place.size]
        with refused_at_end(alphas.device):
            own = write(together[place.rank]) if place.rank < len(together) else None
        found = place.all_of(None if own is None else own.cpu())
        for tokens in (tokens.to(device) for tokens in found if tokens is not None):
            made.append(tokens)
            if each is not None:
                each(tokens)
    return torch.cat(made)
