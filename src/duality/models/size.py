"""A recipe before it runs: the size of its network, and the memory that a training or a sampling needs at least.

The memory is compared with what the machine has before any of it is taken. The figures are lower bounds: weights and
what is kept for each of them, and two vectors for each position of a batch. What is refused here would certainly have
failed; what is accepted may still need more than there is.
"""

from __future__ import annotations

import os
from json import dumps
from pathlib import Path

import torch
from torch import nn

from duality.protocols import Network, Vocabulary
from duality.ranks import job
from duality.recipes.catalogue import to_json
from duality.recipes.recipe import Recipe
from duality.recipes.shapes import expected_vocabulary, outline
from duality.training.adapters import NOTHING, num_trained
from duality.training.settings import Training


def describe_trained(recipe: Recipe, count: int, trained: int) -> str | None:
    """Which of ``count`` parameters are trained, in a sentence; None if all are."""
    training = recipe.training
    if training.lora:
        return f"{trained:,} more in adapters of rank {training.lora}, which alone are trained ({trained / count:.2%})"
    if training.freeze != NOTHING:
        return f"{trained:,} of them are trained ({trained / count:.2%}); frozen: {training.freeze}"
    return None


def describe(recipe: Recipe) -> str:
    """The resolved recipe as JSON, its parameters and the memory that they need."""
    vocabulary = expected_vocabulary(recipe)
    count, held, trained = _counts(outline(recipe, vocabulary), recipe.training)
    words = describe_trained(recipe, count, trained)
    return "\n".join(
        [
            dumps(to_json(recipe), indent=2),
            f"{count:,} parameters for a vocabulary of {vocabulary.num_tokens:,} tokens",
            *([] if words is None else [words]),
            f"{(held * 4 + trained * 12) / 2**20:,.0f} MiB for weights, gradients and AdamW's moments, "
            f"{held * 4 / 2**20:,.0f} MiB for the average",
        ]
    )


# --- memory

_FLOAT = 4
_KEPT = 2 * _FLOAT  # for each weight: itself and its average
_TRAINED = 3 * _FLOAT  # for each weight that is trained: its gradient and two moments
_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def find_memory(device: torch.device) -> int:
    """The bytes of memory that a process can have at most: the device's, or the machine's within its control group.

    The ranks of a job on one machine share its memory, unless each has a GPU.
    """
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    for path in _GROUPS:
        text = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        limits += [int(text)] if text.isdecimal() else []
    return min(limits, default=1 << 62) // job().local_size


def count_parameters(network: nn.Module) -> int:
    """The number of weights of a network."""
    return sum(value.numel() for value in network.parameters())


def _counts(network: nn.Module, training: Training) -> tuple[int, int, int]:
    """The weights of a plain network, those with the adapters that it will have, and how many of these are trained."""
    count, trained = count_parameters(network), num_trained(network, training)
    return count, count + (trained if training.lora else 0), trained


def _width_of(network: nn.Module) -> int:
    """The numbers of a position's vector."""
    return max((part.head.in_features for part in network.modules() if isinstance(part, Network)), default=1)


def count_trained_bytes(recipe: Recipe, vocabulary: Vocabulary) -> int:
    """The bytes of everything that a training keeps for its weights, over all ranks that share them."""
    count, held, trained = _counts(outline(recipe, vocabulary), recipe.training)
    return held * _KEPT + trained * _TRAINED + (count * _FLOAT if recipe.distillation is not None else 0)


def check_training(recipe: Recipe, vocabulary: Vocabulary, device: torch.device | str, divided: int = 1) -> None:
    """Refuse a training whose weights, of which a rank has 1 / ``divided``, and vectors do not fit into memory."""
    network, settings = outline(recipe, vocabulary), recipe.training
    batch = min(settings.micro_batch or settings.batch_size, -(-settings.batch_size // job().size))
    count, weights = count_parameters(network), count_trained_bytes(recipe, vocabulary) // divided
    _check(
        f"training {recipe.name} ({count:,} parameters, {batch:,} x {recipe.data.length:,} tokens at a time)",
        weights,
        batch * recipe.data.length * _width_of(network) * 2 * _FLOAT,
        torch.device(device),
        "take a smaller backbone" if weights > find_memory(torch.device(device)) else "set training.micro_batch lower",
    )


def check_network(recipe: Recipe, vocabulary: Vocabulary, device: torch.device | str) -> None:
    """Refuse a network whose weights do not fit into memory."""
    count = count_parameters(outline(recipe, vocabulary))
    _check(f"a network of {count:,} parameters", count * _FLOAT, 0, torch.device(device), "take a smaller model")


def check_sampling(network: nn.Module, batch: int, length: int, device: torch.device) -> None:
    """Refuse samples whose vectors do not fit into memory."""
    _check(
        f"sampling {batch:,} sequences of {length:,} tokens at a time",
        count_parameters(network) * _FLOAT,
        batch * length * _width_of(network) * 2 * _FLOAT,
        device,
        "take a smaller length or batch size",
    )


def _check(what: str, weights: int, vectors: int, device: torch.device, remedy: str) -> None:
    """Refuse what needs more bytes for weights and vectors than there are; the message says what would fit."""
    there = find_memory(device)
    if weights + vectors <= there:
        return
    share = max(0, there - weights) / vectors if vectors else 0.0
    fits = f"; {share:.2g} of the batch would fit" if 0 < share < 1 else ""
    needed = _in_words(weights + vectors)
    raise ValueError(f"{what} needs at least {needed} of memory, and there are {_in_words(there)}{fits}: {remedy}")


def _in_words(count: int) -> str:
    """A number of bytes.

    >>> _in_words(3 << 29), _in_words(5 << 20)
    ('1.5 GiB', '5.0 MiB')
    """
    return f"{count / 2**30:,.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:,.1f} MiB"
