"""The corpus of a run: prepared for training, measured on, or written from memory.

Data that is given from Python, texts or tensors of ids, is written into ``data/`` of the run folder and trained on from
there, so that a run can be resumed and measured without the program that started it. What must hold: data that is in a
run folder already is never replaced; other data for the same run is refused.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from duality.data.cache import silent
from duality.data.corpus import Corpus, encode_corpus, prepare
from duality.data.memory import write_corpus
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.protocols import Reporter, Vocabulary
from duality.recipes.recipe import Recipe
from duality.runs.folder import DATA, with_corpus
from duality.runs.provenance import check_corpus

if TYPE_CHECKING:
    from duality.runs.model import Model

TrainingData = str | Path | Iterable[str] | Tensor | Sequence[Tensor]


def prepared(recipe: Recipe, report: Reporter = silent) -> Corpus:
    """The corpus of a recipe, split and tokenized."""
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
    """What a method needs to know of a corpus."""
    num_tokens = corpus.tokenizer.vocab_size
    return Vocabulary(num_tokens, len(corpus.label_names), lambda: token_counts(corpus.train, num_tokens))


def token_counts(store: TokenStore, num_tokens: int, block: int = 1 << 22) -> torch.Tensor:
    """How often each token occurs, read block by block."""
    counts = torch.zeros(num_tokens, dtype=torch.float64)
    for start in range(0, len(store), block):
        counts += torch.bincount(torch.from_numpy(store[start : start + block].astype("int64")), minlength=num_tokens)
    return counts


def sequences_of_run(
    model: Model,
    folder: Path | str,
    *,
    data: str | Path | None = None,
    split: Literal["validation", "train"] = "validation",
    report: Reporter = silent,
) -> Sequences:
    """A part of the corpus that the run in ``folder`` was trained on, or other ``data`` in the run's own tokens."""
    own = model.recipe.data
    if data is not None:
        store = encode_corpus(data, model.tokenizer, label_names=model.label_names or None, progress=report)
    else:
        corpus = prepared(model.recipe, report)
        check_corpus(Path(folder), corpus)
        store = corpus.validation if split == "validation" else corpus.train
    return Sequences(store, own.length, own.packing)


def with_data(recipe: Recipe, data: TrainingData, folder: Path) -> Recipe:
    """The recipe on other data: a path, a named corpus, or what is in memory, which is written into ``folder``."""
    if isinstance(data, (str, Path)):
        return with_corpus(recipe, data)
    temporary, target = folder / f".{DATA}.{os.getpid()}", folder / DATA
    try:
        written = write_corpus(data, temporary)
        path = target / written.path.name
        if not target.exists():
            os.replace(temporary, target)
        elif not path.is_file() or not filecmp.cmp(written.path, path, shallow=False):
            raise ValueError(f"{target} holds other data than was given: give the same, or choose another out folder")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if written.tokenizer is not None:
        recipe = replace(recipe, data=replace(recipe.data, tokenizer=written.tokenizer))
    return with_corpus(recipe, path)
