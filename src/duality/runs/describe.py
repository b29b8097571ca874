"""A recipe before it runs: its fields, the size of its network and the memory that it needs."""

from __future__ import annotations

import math
from json import dumps

from duality.recipes.catalogue import to_json
from duality.recipes.recipe import Recipe
from duality.runs.shapes import expected_vocabulary, parameter_shapes


def parameters(recipe: Recipe) -> tuple[int, int]:
    """Number of parameters and the vocabulary they are for, counted on the network itself without allocating it."""
    vocabulary = expected_vocabulary(recipe)
    shapes = parameter_shapes(recipe, vocabulary)
    return sum(map(math.prod, shapes.values())), vocabulary.num_tokens


def describe(recipe: Recipe) -> str:
    """The resolved recipe as JSON, its parameters and the memory that they need."""
    count, num_tokens = parameters(recipe)
    return "\n".join(
        [
            dumps(to_json(recipe), indent=2),
            f"{count:,} parameters for a vocabulary of {num_tokens:,} tokens",
            f"{count * 16 / 2**20:,.0f} MiB for weights, gradients and AdamW's moments, "
            f"{count * 4 / 2**20:,.0f} MiB for the average",
        ]
    )
