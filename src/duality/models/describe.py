"""A recipe before it runs: its fields, the size of its network and the memory that it needs."""

from __future__ import annotations

import math
from json import dumps

from duality.recipes.catalogue import to_json
from duality.recipes.recipe import Recipe
from duality.recipes.shapes import expected_vocabulary, outline, parameter_shapes
from duality.training.adapters import num_trained
from duality.training.freezing import NOTHING


def parameters(recipe: Recipe) -> tuple[int, int]:
    """Number of parameters and the vocabulary they are for, counted on the network itself without allocating it."""
    vocabulary = expected_vocabulary(recipe)
    shapes = parameter_shapes(recipe, vocabulary)
    return sum(map(math.prod, shapes.values())), vocabulary.num_tokens


def trained_parameters(recipe: Recipe) -> int:
    """How many of the parameters are trained, or how many the adapters have."""
    return num_trained(outline(recipe, expected_vocabulary(recipe)), recipe.training)


def trained_words(recipe: Recipe, count: int, trained: int) -> str | None:
    """Which of ``count`` parameters are trained, in a sentence; None if all are."""
    training = recipe.training
    if training.lora:
        return f"{trained:,} more in adapters of rank {training.lora}, which alone are trained ({trained / count:.2%})"
    if training.freeze != NOTHING:
        return f"{trained:,} of them are trained ({trained / count:.2%}); frozen: {training.freeze}"
    return None


def describe(recipe: Recipe) -> str:
    """The resolved recipe as JSON, its parameters and the memory that they need."""
    (count, num_tokens), trained = parameters(recipe), trained_parameters(recipe)
    held = count + (trained if recipe.training.lora else 0)
    words = trained_words(recipe, count, trained)
    return "\n".join(
        [
            dumps(to_json(recipe), indent=2),
            f"{count:,} parameters for a vocabulary of {num_tokens:,} tokens",
            *([] if words is None else [words]),
            f"{(held * 4 + trained * 12) / 2**20:,.0f} MiB for weights, gradients and AdamW's moments, "
            f"{held * 4 / 2**20:,.0f} MiB for the average",
        ]
    )
