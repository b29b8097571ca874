"""Networks and batches that are measured, and the baseline: the bare network.

The bare network is the baseline: its logits, and in training their backward pass from a gradient that was made
beforehand. No noise, no softmax, no loss. Any further cost is that of the method.

All parameters are random: an untrained head is zero, and its belief would be uniform everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.rows import Size
from benchmarks.timing import Runner
from duality.denoisers.readouts import _noise_level
from duality.methods.plaid import PlaidDenoiser
from duality.networks import SIZES
from duality.networks.dit import DiT
from duality.noise import Noise, stratified_times
from duality.protocols import Backbone, Method, Objective, Vocabulary

BARE = "bare network"


@dataclass(frozen=True)
class Scale:
    """The sizes of all sections. ``QUICK`` shows that everything runs; the bars apply to ``FULL``."""

    backbone: DiT
    batch: int
    length: int
    vocabularies: tuple[int, ...]
    growth_states: tuple[int, ...]
    growth_lengths: tuple[int, ...]
    growth_batches: tuple[int, ...]
    large_states: int
    """From this vocabulary on, growth is measured at the smallest batch."""
    generation_steps: tuple[int, ...]
    generation_length: int
    corpus_words: int
    repeats: int

    @property
    def few(self) -> int:
        """Repeats of measurements that have no bar or take long."""
        return max(min(2, self.repeats), self.repeats // 2)

    def size(self, states: int) -> Size:
        return Size(states, self.batch, self.length)


FULL = Scale(
    backbone=replace(SIZES["mini"](), dropout=0.0),
    batch=8,
    length=128,
    vocabularies=(30_522, 50_257),
    growth_states=(27, 1024, 8192, 30_522, 50_257, 256_000),
    growth_lengths=(64, 128, 256, 512),
    growth_batches=(2, 4, 8, 16),
    large_states=256_000,
    generation_steps=(8, 32, 128),
    generation_length=128,
    corpus_words=200_000,
    repeats=5,
)
QUICK = Scale(
    backbone=DiT(width=32, depth=1, heads=2, time_width=16, dropout=0.0),
    batch=4,
    length=16,
    vocabularies=(61, 97),
    growth_states=(27, 64, 97),
    growth_lengths=(8, 16),
    growth_batches=(2, 4),
    large_states=97,
    generation_steps=(2, 4),
    generation_length=8,
    corpus_words=5_000,
    repeats=2,
)


@dataclass(frozen=True)
class Batch:
    """Clean tokens, their times and their noise."""

    x: Tensor
    t: Tensor
    noise: Noise

    @staticmethod
    def of(size: Size) -> Batch:
        noise = Noise.of(0, 0, torch.arange(size.batch))
        return Batch(noise.integers("clean", size.states, size.length), stratified_times(0, 0, size.batch), noise)


def randomised(network: nn.Module) -> nn.Module:
    """The network with random weights; what is not trained, such as counts of tokens, is unchanged."""
    torch.manual_seed(0)
    for parameter in network.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.05)
    return network


def network_of(method: Method, backbone: Backbone, states: int) -> nn.Module:
    """The network of a method, at a vocabulary of ``states`` tokens."""
    return randomised(method.network(backbone, Vocabulary(states)))


def frozen_copy(network: nn.Module) -> nn.Module:
    """A frozen copy of the network, as a teacher."""
    return copy.deepcopy(network).requires_grad_(False)


def clear_gradients(network: nn.Module) -> Callable[[], None]:
    """A function to call before every step, so that gradients are not added to old ones."""

    def clear() -> None:
        for parameter in network.parameters():
            parameter.grad = None

    return clear


def forward_of(denoiser: Any, batch: Batch) -> Callable[[], Tensor]:
    """The bare network's logits."""
    level = _noise_level(1 - batch.t)
    # the input of a Gaussian model is vectors
    vectors = isinstance(denoiser, PlaidDenoiser)
    z = batch.noise.normal("vector", *batch.x.shape[1:], denoiser.table.shape[1]).float() if vectors else batch.x
    return lambda: denoiser.backbone(z, level)


def bare_step(denoiser: Any, batch: Batch, teacher_calls: int = 0) -> Runner:
    """Logits and their backward pass; for a method with a teacher, the teacher's logits too."""
    forward = forward_of(denoiser, batch)
    teacher = forward_of(frozen_copy(denoiser), batch) if teacher_calls else forward
    with torch.no_grad():
        gradient = torch.randn_like(forward()) / batch.x.numel()

    def run() -> None:
        with torch.no_grad():
            for _ in range(teacher_calls):
                teacher()
        logits: Any = forward()
        logits.backward(gradient)

    return Runner(BARE, run, clear_gradients(denoiser))


def learning_step(name: str, denoiser: nn.Module, objective: Objective, batch: Batch) -> Runner:
    """Loss and backward pass of an objective."""

    def run() -> None:
        total: Any = objective(denoiser, batch.x, batch.t, batch.noise).total
        total.backward()

    return Runner(name, run, clear_gradients(denoiser))


def plain_network(denoiser: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The denoiser's network in the form of ``reference.py``: from ids or dense weights of tokens to logits."""
    backbone = denoiser.backbone
    # the same modules and parameters without the embedding, for inputs that are already vectors
    after_embedding = copy.copy(backbone)
    after_embedding.embed = lambda vectors: vectors

    def logits(z: Tensor, alpha: Tensor) -> Tensor:
        dense = z.is_floating_point()
        network = after_embedding if dense else backbone
        found: Tensor = network(z @ backbone.embedding if dense else z, _noise_level(alpha))
        return found

    return logits
