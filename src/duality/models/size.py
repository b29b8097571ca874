"""A recipe before it runs: the shapes of its weights, and the memory that a training or a sampling needs at least.

The network of a recipe is outlined: it is built as always, on a device that stores nothing, which costs milliseconds
and no memory for any size. The memory is compared with what the machine has before any of it is taken. The figures are
lower bounds: weights and what is kept for each of them, and two vectors for each position of a batch. What is refused
here would certainly have failed; what is accepted may still need more than there is.

What must hold: the shapes are those of the network itself; a network that cannot be built is a ``ValueError``.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import replace
from json import dumps
from pathlib import Path

import torch
from torch import nn

from duality.networks.uninitialised import uninitialised
from duality.protocols import Network, Vocabulary
from duality.ranks import job
from duality.recipes.catalogue import to_json
from duality.recipes.recipe import Recipe
from duality.tokenizers.specs import HubTokenizer, TokenizerFile, TokenizerSpec
from duality.training.adapters import NOTHING, choose_trained, num_trained
from duality.training.parallel import Layout, layout_of

ASSUMED = 100  # tokens, where their number depends on a text
_FLOAT, _NUMBER = 4, 8  # bytes
_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def expected_vocabulary(recipe: Recipe) -> Vocabulary:
    """The vocabulary of a recipe, as far as it is known before its corpus is read.

    The size of an alphabet is not, nor that of a tokenizer that is still to be fetched, nor the number of labels: two
    are enough to see whether the model can have any.
    """
    return Vocabulary(known_vocab_size(recipe.data.tokenizer) or ASSUMED, 2 if recipe.data.labels else 0)


def known_vocab_size(tokenizer: TokenizerSpec) -> int | None:
    """The number of ids of a tokenizer, if it is known before any text is read; nothing is fetched."""
    if isinstance(tokenizer, (TokenizerFile, HubTokenizer)):
        return tokenizer.known_vocab_size()
    return tokenizer.expected_vocab_size


class Outline:
    """The network of a recipe without numbers, and what is known of it: the shapes of its weights, how many there are.

    ``network`` is the plain one, with ``parameters`` weights. Tokens are not counted for it.
    """

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary):
        self.recipe = recipe
        try:
            with uninitialised():
                self.network = recipe.method.network(recipe.backbone, replace(vocabulary, counts=None))
        except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
            why = f"cannot be built ({str(error).splitlines()[0]}): make the backbone smaller"
            raise ValueError(f"the network of {recipe.name} {why}") from None
        self.parameters = sum(value.numel() for value in self.network.parameters())

    def shapes(self, adapters: bool = False) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights; with ``adapters`` as a training has them, if the recipe trains adapters."""
        network = self.network
        if adapters and self.recipe.training.lora:
            network = deepcopy(network)
            with uninitialised():
                choose_trained(network, self.recipe.training)
        return {name: tuple(value.shape) for name, value in network.named_parameters()}

    def describe_trained(self) -> str | None:
        """Which of the weights are trained, in a sentence; None if all are."""
        training, trained = self.recipe.training, num_trained(self.network, self.recipe.training)
        share = f"{trained / self.parameters:.2%}"
        if training.lora:
            return f"{trained:,} more in adapters of rank {training.lora}, which alone are trained ({share})"
        if training.freeze != NOTHING:
            return f"{trained:,} of them are trained ({share}); frozen: {training.freeze}"
        return None

    def count_bytes(self) -> tuple[int, int]:
        """The bytes of weights, gradients and moments of a training, over all ranks, and those of one more copy."""
        trained = num_trained(self.network, self.recipe.training)
        held = (self.parameters + (trained if self.recipe.training.lora else 0)) * _FLOAT
        return held + 3 * trained * _FLOAT, held

    def lay_out(self, device: torch.device | str, layout: Layout | None = None) -> Layout:
        """How the weights of a training lie on the ranks of the job, if ``layout`` does not say it.

        A training is refused whose weights, of which a rank has its part, and vectors do not fit into memory.
        """
        recipe, settings, there = self.recipe, self.recipe.training, _find_memory(torch.device(device))
        needed = sum(self.count_bytes()) + (self.parameters * _FLOAT if recipe.distillation is not None else 0)
        if layout is None:
            layout = layout_of(recipe.parallel, job(), torch.device(device), needed, there)
        weights, length = needed // layout.divided, recipe.data.length
        batch = min(settings.micro_batch or settings.batch_size, -(-settings.batch_size // job().size))
        size = f"{self.parameters:,} parameters, {batch:,} x {length:,} tokens at a time"
        remedy = "take a smaller backbone" if weights > there else "set training.micro_batch lower"
        _check(f"training {recipe.name} ({size})", self.network, weights, batch * length, there, remedy)
        return layout

    def check(self, device: torch.device) -> None:
        """Refuse a network whose weights do not fit into memory."""
        what, weights = f"a network of {self.parameters:,} parameters", self.parameters * _FLOAT
        _check(what, self.network, weights, 0, _find_memory(device), "take a smaller model")


def describe(recipe: Recipe) -> str:
    """The resolved recipe as JSON, its parameters and the memory that they need."""
    vocabulary = expected_vocabulary(recipe)
    outline = Outline(recipe, vocabulary)
    learnt, average = (f"{count / 2**20:,.0f} MiB" for count in outline.count_bytes())
    lines = (
        dumps(to_json(recipe), indent=2),
        f"{outline.parameters:,} parameters for a vocabulary of {vocabulary.num_tokens:,} tokens",
        outline.describe_trained(),
        f"{learnt} for weights, gradients and AdamW's moments, {average} for the average",
    )
    return "\n".join(filter(None, lines))


def check_sampling(network: nn.Module, batch: int, length: int, device: torch.device, num: int) -> None:
    """Refuse samples whose vectors do not fit into memory, or whose tokens, which are there until all are written."""
    what = f"sampling {batch:,} sequences of {length:,} tokens at a time"
    weights = sum(value.numel() for value in network.parameters()) * _FLOAT
    _check(what, network, weights, batch * length, _find_memory(device), "take a smaller length or batch size")
    kept, there = 2 * _NUMBER * num * length, _find_memory(torch.device("cpu"))
    _compare(f"keeping {num:,} samples of {length:,} tokens", kept, there, "", "take fewer samples (num)")


def _find_memory(device: torch.device) -> int:
    """The bytes of memory that a process can have at most: the device's, or the machine's within its control group.

    The ranks of a job on one machine share its memory, unless each has a GPU.
    """
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    texts = [path.read_text(encoding="ascii").strip() for path in _GROUPS if path.is_file()]
    limits += [int(text) for text in texts if text.isdecimal()]
    return min(limits, default=1 << 62) // job().local_size


def _check(what: str, network: nn.Module, weights: int, positions: int, there: int, remedy: str) -> None:
    """Refuse what needs more bytes than are ``there``, for weights and two vectors for each position of a batch.

    The message says what would fit.
    """
    width = max((part.head.in_features for part in network.modules() if isinstance(part, Network)), default=1)
    vectors = 2 * _FLOAT * positions * width
    if weights + vectors > there:
        share = max(0, there - weights) / vectors if vectors else 0.0
        fits = f"; {share:.2g} of the batch would fit" if 0 < share < 1 else ""
        _compare(what, weights + vectors, there, fits, remedy)


def _compare(what: str, needed: int, there: int, fits: str, remedy: str) -> None:
    """Refuse what needs more bytes than are ``there``."""
    if needed > there:
        sizes = (needed, there)
        least, present = (f"{n / 2**30:,.1f} GiB" if n >= 1 << 30 else f"{n / 2**20:,.1f} MiB" for n in sizes)
        raise ValueError(f"{what} needs at least {least} of memory, and there are {present}{fits}: {remedy}")
