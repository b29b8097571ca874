"""The shapes of a recipe's weights, known without making them: a network of any size costs milliseconds and no memory.

What must hold: the shapes are those of the network itself, which is built as always, on a device that stores nothing;
a network that cannot be built there is a ``ValueError``.
"""

from __future__ import annotations

from torch import nn

from duality.networks.uninitialised import uninitialised
from duality.protocols import Vocabulary
from duality.recipes.recipe import Recipe
from duality.tokenizers.specs import HubTokenizer, TokenizerFile
from duality.training.adapters import choose_trained


def expected_vocabulary(recipe: Recipe) -> Vocabulary:
    """The vocabulary of a recipe, as far as it is known before its corpus is read.

    The size of an alphabet is not, nor that of a tokenizer that is still to be fetched, nor the number of labels: two
    are enough to see whether the model can have any.
    """
    tokenizer = recipe.data.tokenizer
    if isinstance(tokenizer, (TokenizerFile, HubTokenizer)):
        size = tokenizer.known_vocab_size()
    else:
        size = tokenizer.expected_vocab_size
    return Vocabulary(size or 100, 2 if recipe.data.labels else 0)


def outline(recipe: Recipe, vocabulary: Vocabulary) -> nn.Module:
    """A recipe's network without numbers."""
    try:
        with uninitialised():
            return recipe.method.network(recipe.backbone, vocabulary)
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the network of {recipe.name} cannot be built ({reason}): make the backbone smaller"
        ) from None


def trained_shapes(recipe: Recipe, vocabulary: Vocabulary) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights as a training of the recipe has them: with adapters, if it trains adapters."""
    if not recipe.training.lora:
        return parameter_shapes(recipe, vocabulary)
    model = outline(recipe, vocabulary)
    with uninitialised():
        choose_trained(model, recipe.training)
    return _shapes_of(model)


def parameter_shapes(recipe: Recipe, vocabulary: Vocabulary) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of a recipe's network."""
    return _shapes_of(outline(recipe, vocabulary))


def _shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.named_parameters()}
