"""A recipe before it runs: what it resolves to, how large its network is, what that needs."""

from __future__ import annotations

from json import dumps

import torch

from duality.data.tokenizer_specs import expected_vocab_size
from duality.protocols import Vocabulary
from duality.recipes.catalogue import to_json
from duality.recipes.recipe import Recipe
from duality.runs.model import network


def parameters(recipe: Recipe) -> tuple[int, int]:
    """Number of parameters and the vocabulary they are for, counted on the network itself without allocating it."""
    num_tokens = expected_vocab_size(recipe.data.tokenizer) or 100  # an alphabet is found by training
    with torch.device("meta"):
        # how many labels there are is found in the data; two are enough to see whether the model can have any
        built = network(recipe, Vocabulary(num_tokens, 2 if recipe.data.labels else 0), "meta")
        return sum(value.numel() for value in built.parameters()), num_tokens


def describe(recipe: Recipe) -> None:
    """The resolved recipe, its parameters and what they need."""
    count, num_tokens = parameters(recipe)
    print(dumps(to_json(recipe), indent=2))
    print(f"{count:,} parameters for a vocabulary of {num_tokens:,} tokens")
    print(
        f"{count * 16 / 2**20:,.0f} MiB for weights, gradients and AdamW's moments, "
        f"{count * 4 / 2**20:,.0f} MiB for the average"
    )
