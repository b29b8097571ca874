"""A trained model as the parts that everything about it is computed from: recipe, weights, tokenizer.

``Model`` (model.py) is this with all that a trained model does. The modules that do one thing each (sampling, the model
card, publishing) take a ``TrainedModel`` and so need not import the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from duality.protocols import Measure, Process, Sampler, Schedule
from duality.recipes.recipe import Recipe
from duality.samplers.choice import sampler_named
from duality.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Origin:
    """Where weights came from: a folder or ``hf:owner/name``, the commit there, and the sha256 of their file.

    ``weights`` are averaged ("ema") or raw ("model"). ``folder`` is where the files are on this machine.
    """

    place: str
    sha256: str
    weights: Literal["ema", "model"]
    folder: Path
    commit: str | None = None


@dataclass(frozen=True)
class TrainedModel:
    """The parts of a trained model; ``step`` is the training step of its weights, ``origin`` where they were."""

    recipe: Recipe
    step: int
    denoiser: nn.Module
    tokenizer: Tokenizer
    label_names: tuple[str, ...] = ()
    origin: Origin | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.denoiser.parameters()).device

    @property
    def length(self) -> int:
        """The number of tokens of the sequences that it was trained on."""
        return self.recipe.data.length

    @property
    def schedule(self) -> Schedule:
        """The schedule that it is sampled with."""
        return self.recipe.method.sampling_schedule()

    @property
    def sampler(self) -> Sampler:
        """Its own sampler."""
        return self.recipe.method.sampler(self.tokenizer.vocab_size)

    @property
    def measure(self) -> Measure:
        """Its likelihood."""
        return self.recipe.method.measure(self.tokenizer.vocab_size)

    @property
    def mask_id(self) -> int | None:
        """The mask token; None if it has none."""
        process = self.recipe.method.process(self.tokenizer.vocab_size)
        return None if process is None else process.mask_id

    def process(self) -> Process:
        """The discrete process that the model reverses."""
        process = self.recipe.method.process(self.tokenizer.vocab_size)
        if process is None:
            raise ValueError(
                f"{type(self.recipe.method).__name__} has no discrete process: it is written by its own sampler only; "
                "leave the sampler out"
            )
        return process

    def named_sampler(self, name: str = "own", eta: float | None = None) -> Sampler:
        """Its own sampler, or another one of its process by name; ``eta`` is the strength of a psi sampler."""
        if name != "own":
            return sampler_named(name, self.process(), eta=eta)
        if eta is not None:
            raise ValueError(f"eta is {eta}, and the model's own sampler has none: it is the strength of a psi sampler")
        return self.sampler
