"""The corpus of a run: prepared for training, described, measured on, or written from memory.

Data that is given from Python, texts or tensors of ids, is written into ``data/`` of the run folder and trained on from
there, so that a run can be resumed and measured without the program that started it. What must hold: data that is in a
run folder already is never replaced; other data for the same run is refused; the sequences of a recipe are made by
``sequences`` alone, so that training and every measurement have the same packing and padding.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from duality.data.cache import silent
from duality.data.corpus import Corpus, encode_corpus, prepare
from duality.data.documents import all_lines
from duality.data.memory import write_corpus
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.data.tokenizers import FILE as TOKENIZER
from duality.data.tokenizers import Tokenizer
from duality.protocols import Reporter, Vocabulary
from duality.recipes.recipe import Data, Recipe
from duality.runs.folder import DATA, with_corpus
from duality.runs.provenance import CORPUS, check_corpus, read_identity, read_tokenizer

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
        documents=data.documents,
        progress=report,
    )


def corpus_of_run(folder: Path, recipe: Recipe, report: Reporter = silent) -> Corpus:
    """The corpus that the run in ``folder`` was trained on; any other is refused.

    The recipe of somebody else's run may name any file of this machine. It is read only for a run that says which
    tokens it must give, in the run's own tokenizer, and a message says what is read.
    """
    if read_identity(folder)["tokenizer"] != read_tokenizer(folder).fingerprint:
        raise ValueError(
            f"{folder / CORPUS} is of another tokenizer than {folder / TOKENIZER}: put back the files that belong to "
            "the run"
        )
    if Path(recipe.data.corpus).exists():
        report(f"the corpus of {folder} is {recipe.data.corpus}, as its recipe says")
    corpus = prepared(recipe, report)
    check_corpus(folder, corpus)
    return corpus


def sequences(data: Data, store: TokenStore, tokenizer: Tokenizer, length: int | None = None) -> Sequences:
    """The sequences of a store as a recipe packs and pads them; of another ``length`` if one is given."""
    return Sequences(store, data.length if length is None else length, data.packing, data.padding, tokenizer.separator)


def vocabulary_of(data: Data, corpus: Corpus) -> Vocabulary:
    """What a method needs to know of a corpus."""
    rows = sequences(data, corpus.train, corpus.tokenizer)
    return Vocabulary(corpus.tokenizer.vocab_size, len(corpus.label_names), lambda: token_counts(rows))


def token_counts(rows: Sequences, block: int = 1 << 22) -> torch.Tensor:
    """How often each token is trained on in an epoch; the store is read block by block."""
    store, num_tokens = rows.store, rows.store.vocab_size
    counts = torch.zeros(num_tokens, dtype=torch.float64)
    for start in range(0, len(store), block):
        counts += torch.bincount(torch.from_numpy(store[start : start + block].astype("int64")), minlength=num_tokens)
    if rows.separator is not None:
        counts[rows.separator] += rows.num_padding
    return counts


def summary(data: Data, corpus: Corpus) -> list[str]:
    """The facts of a corpus in sentences: what a training on it begins with; a warning, if one is due."""
    train, held_out = corpus.train, corpus.validation
    unit = "line" if all_lines(data.corpus, data.documents) else "document"
    lines = [
        f"{train.num_documents:,} {unit}{'s' * (train.num_documents > 1)} ({len(train):,} tokens) to train on, "
        f"{held_out.num_documents:,} ({len(held_out):,} tokens) for validation"
    ]
    if data.packing == "wrap":
        return lines
    lengths, rows = np.diff(train.document_ends, prepend=0), sequences(data, train, corpus.tokenizer)
    median, cut = float(np.median(lengths)), int((lengths > data.length).sum())
    lines.append(
        f"a {unit} has {median:g} tokens in the median, with its end-of-text; {cut:,} are longer than a sequence of "
        f"{data.length} and are cut into several rows"
    )
    if rows.models_padding:
        share = rows.num_padding / (len(rows) * data.length)
        lines.append(f"what follows the end of a document, {share:.0%} of all positions, is end-of-text tokens")
    elif median < data.length / 2:
        lines.append(
            "warning: most positions are padding, which data.padding=ignore leaves out: the model will not learn where "
            "a document ends; set data.padding=model"
        )
    return lines


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
        names = model.label_names or None
        store = encode_corpus(data, model.tokenizer, label_names=names, documents=own.documents, progress=report)
    else:
        corpus = corpus_of_run(Path(folder), model.recipe, report)
        store = corpus.validation if split == "validation" else corpus.train
    return sequences(own, store, model.tokenizer)


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
