"""The corpus of a run."""

from __future__ import annotations

import torch

from duality.data.corpus import Corpus, prepare
from duality.data.store import TokenStore
from duality.protocols import Reporter, Vocabulary
from duality.recipes.recipe import Recipe


def prepared(recipe: Recipe, report: Reporter) -> Corpus:
    """The corpus of a recipe."""
    data = recipe.data
    return prepare(
        data.corpus,
        data.tokenizer,
        validation=data.validation,
        split=data.split,
        labels=data.labels,
        progress=report,
    )


def vocabulary_of(corpus: Corpus) -> Vocabulary:
    """What a method is told of a corpus."""
    num_tokens = corpus.tokenizer.vocab_size
    return Vocabulary(num_tokens, len(corpus.label_names), lambda: token_counts(corpus.train, num_tokens))


def token_counts(store: TokenStore, num_tokens: int, block: int = 1 << 22) -> torch.Tensor:
    """How often each token occurs, read block by block."""
    counts = torch.zeros(num_tokens, dtype=torch.float64)
    for start in range(0, len(store), block):
        counts += torch.bincount(torch.from_numpy(store[start : start + block].astype("int64")), minlength=num_tokens)
    return counts
