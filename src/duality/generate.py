"""The only sampling loop: start from the prior, take ``steps`` steps, end at alpha = 1.

``steps`` is exactly the number of network calls. The last step goes to alpha = 1, where the ``ancestral`` tail draws
from the belief and the ``greedy`` tail (the paper's Greedy-Tail sampler) takes its argmax.

Sample i of a seed has its own noise: it is the same whether it is generated alone or among a thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from duality.noise import Noise
from duality.protocols import Denoiser, Latent, Process, Sampler, Schedule

Tail = Literal["greedy", "ancestral"]
Grid = Callable[[int], Tensor]


def linear_grid(steps: int) -> Tensor:
    """steps + 1 equally spaced times from 1 to 0."""
    return torch.linspace(1, 0, steps + 1, dtype=torch.float64)


@dataclass(frozen=True)
class Frame:
    """The state after a step, for whoever watches."""

    step: int
    steps: int
    alpha: float
    tokens: Tensor


def levels(schedule: Schedule, steps: int, grid: Grid = linear_grid) -> Tensor:
    """The signal levels of a grid of times; the last is 1 whatever the schedule's clean end is."""
    if steps < 1:
        raise ValueError(f"steps is {steps}: generation needs at least 1 step, which is 1 network call")
    alphas = schedule.alpha(grid(steps))
    alphas[-1] = 1.0
    return alphas


@dataclass(frozen=True)
class _Finite:
    """A denoiser whose belief is a belief: weights that are no numbers would otherwise write noise without a word."""

    denoiser: Denoiser

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        log_p = self.denoiser.log_probs(z, alpha, mask, dropout)
        # one state is enough: a softmax with a NaN in it is NaN everywhere
        if bool(log_p[..., 0].isnan().any()):
            raise ValueError(
                f"the network's output at alpha = {float(alpha[0]):.3g} is not a number: its weights are bad"
            )
        return log_p


@torch.no_grad()
def generate(
    denoiser: Denoiser,
    process: Process,
    schedule: Schedule,
    sampler: Sampler,
    *,
    num: int,
    length: int,
    steps: int,
    seed: int = 0,
    tail: Tail = "ancestral",
    grid: Grid = linear_grid,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    watch: Callable[[Frame], None] | None = None,
) -> Tensor:
    """``num`` sequences of ``length`` tokens, (num, length) int64."""
    if num < 1 or length < 1 or batch_size < 1:
        raise ValueError(f"num is {num}, length {length}, batch_size {batch_size}: each must be at least 1")
    if tail not in ("greedy", "ancestral"):
        raise ValueError(f"tail is {tail!r}: choose 'greedy' or 'ancestral'")
    alphas = levels(schedule, steps, grid).to(device)
    denoiser = _Finite(denoiser)
    batches = []
    for start in range(0, num, batch_size):
        index = torch.arange(start, min(start + batch_size, num), device=device)
        noise = Noise.of(seed, 0, index).fold("generate")
        z = process.sample_prior(length, noise)
        for step in range(steps):
            alpha_t, alpha_s = alphas[step].expand(len(z)), alphas[step + 1].expand(len(z))
            if step == steps - 1 and tail == "greedy":
                z = denoiser.log_probs(z, alpha_t).argmax(-1)
            else:
                z = sampler.step(denoiser, process, z, alpha_t, alpha_s, noise.fold(step))
            if watch is not None:
                watch(Frame(step + 1, steps, float(alphas[step + 1]), z))
        batches.append(z)
    return torch.cat(batches)
