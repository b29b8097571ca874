"""What a recipe makes of its corpus: sequences, batches, the vocabulary, and what is said of it.

    corpus = prepare_corpus(recipe)                  split and tokenized; it comes from the cache if it was made before
    rows = make_sequences(data, corpus.train, ...)   packed and padded as the recipe says
    batches = make_loader(recipe, corpus, folder)    what a training reads, in the order of its seed

What must hold: the sequences of a recipe are made by ``make_sequences`` alone, so that training and every measurement
have the same packing and padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from duality.data.corpus import Corpus, prepare
from duality.data.documents import find_held_out_part, has_only_lines, list_skipped, read_documents
from duality.data.loader import Loader, MixedOrder
from duality.data.named import PartName, shares_of
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.data.stream import StreamLoader
from duality.files.progress import Reporter, silent
from duality.protocols import Vocabulary
from duality.recipes.recipe import Data, Recipe
from duality.tokenizers.tokenizer import Tokenizer

_BLOCK = 1 << 14  # sequences that are read at a time


def prepare_corpus(
    recipe: Recipe,
    report: Reporter = silent,
    check_text: Callable[[str], None] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """The corpus of a recipe, split and tokenized; ``check_text`` may refuse its text by its checksum before.

    ``tokenizer`` is used in place of that of the recipe, if it is given.
    """
    data = recipe.data
    return prepare(
        data.corpus,
        data.tokenizer if tokenizer is None else tokenizer,
        validation=data.validation,
        split=data.split,
        labels=data.labels,
        documents=data.documents,
        column=data.column,
        eos=data.eos,
        stream=data.stream,
        progress=report,
        check_text=check_text,
    )


def make_sequences(data: Data, store: TokenStore, tokenizer: Tokenizer, length: int | None = None) -> Sequences:
    """The sequences of a store as a recipe packs and pads them; of another ``length`` if one is given."""
    return Sequences(store, data.length if length is None else length, data.packing, data.padding, tokenizer.separator)


def make_loader(recipe: Recipe, corpus: Corpus, folder: Path) -> Loader | StreamLoader:
    """The batches that a recipe is trained on; blocks of a streamed corpus are kept in ``folder`` for a while."""
    data, training = recipe.data, recipe.training
    rows = partial(make_sequences, data, tokenizer=corpus.tokenizer)
    if not data.stream:
        order = _mix_order(data, corpus, training.seed)
        return Loader(rows(corpus.train), training.batch_size, training.seed, order)
    apart = data.split == "auto" and find_held_out_part(data.corpus, streamed=True) is not None
    part: PartName | None = "train" if apart else None
    read = partial(read_documents, data.corpus, data.documents, data.column, part=part)
    sizes = {"size": data.stream, "batch_size": training.batch_size, "seed": training.seed}
    return StreamLoader(
        corpus.train, lambda start: read(start=start), corpus.tokenizer, rows, folder, **sizes, eos=data.eos
    )


def _mix_order(data: Data, corpus: Corpus, seed: int) -> MixedOrder | None:
    """The order in which a training visits a mixture of corpora; None if there is one corpus."""
    if not corpus.groups:
        return None
    shares, rows = shares_of(data.corpus), make_sequences(data, corpus.train, corpus.tokenizer)
    documents = np.cumsum(corpus.groups)
    if data.packing == "document":
        ends = rows.window_ends[documents - 1]
    else:  # a sequence that has the end of a corpus and the beginning of the next one is of the first
        ends = -(-corpus.train.document_ends[documents - 1] // rows.length)
    sizes = np.diff(ends, prepend=0)
    for share, size in zip(shares, sizes, strict=True):
        if size < 1:
            raise ValueError(f"{share} has no sequence of its own in the mixture: give more of it, or leave it out")
    return MixedOrder(tuple(ends.tolist()), tuple(shares.values()), seed)


def count_vocabulary(data: Data, corpus: Corpus) -> Vocabulary:
    """What a method needs to know of a corpus."""
    rows = make_sequences(data, corpus.train, corpus.tokenizer)
    names, mixed = corpus.label_names, _mix_order(data, corpus, 0)

    def counts() -> torch.Tensor:
        ends, weights = ((len(rows),), (1.0,)) if mixed is None else (mixed.ends, mixed.weights)
        counts = torch.zeros(len(ends), rows.store.vocab_size, dtype=torch.float64)
        for row, first, last, weight in zip(counts, (0, *ends), ends, weights):
            for start in range(first, last, _BLOCK):
                ids, valid = rows.rows(range(start, min(start + _BLOCK, last)))
                row += torch.bincount(ids[valid], minlength=len(row))
            row *= weight * len(rows) / max(last - first, 1)  # as often as training takes the sequences of each corpus
        return counts.sum(0)

    return Vocabulary(corpus.tokenizer.vocab_size, len(names), counts)


def describe_corpus(recipe: Recipe, corpus: Corpus) -> list[str]:
    """What a training begins with, in sentences: the facts of its corpus, a warning if one is due, and how it is read.

    The last ones say how often the training will see the corpus, and which files are not in it.
    """
    data, training, train, held_out = recipe.data, recipe.training, corpus.train, corpus.validation
    rows = make_sequences(data, train, corpus.tokenizer)
    unit = "line" if has_only_lines(data.corpus, data.documents) else "document"
    lines = [
        f"{train.num_documents:,} {unit}{'s' * (train.num_documents > 1)} ({len(train):,} tokens) to train on, "
        f"{held_out.num_documents:,} ({len(held_out):,} tokens) for validation"
    ]
    if data.packing == "document":
        lengths = np.diff(train.document_ends, prepend=0)
        median, cut = float(np.median(lengths)), int((lengths > data.length).sum())
        lines.append(
            f"a {unit} has {median:g} tokens in the median, with its end-of-text; {cut:,} are longer than a sequence "
            f"of {data.length} and are cut into several rows"
        )
        if rows.models_padding:
            share = rows.num_padding / (len(rows) * data.length)
            lines.append(f"what follows the end of a document, {share:.0%} of all positions, is end-of-text tokens")
        elif median < data.length / 2:
            lines.append(
                "warning: most positions are padding, which data.padding=ignore leaves out: the model will not learn "
                "where a document ends; set data.padding=model"
            )
    taken = f"{training.steps:,} steps of {training.batch_size} sequences"
    if data.stream:
        others = f"the others are read as many at a time while training goes on: {taken} of {rows.length} tokens"
        return [*lines, f"these are the first {data.stream:,} documents; {others}"]
    seen, mixed = training.steps * training.batch_size, _mix_order(data, corpus, training.seed)
    if mixed is None:
        epochs = seen / len(rows) if len(rows) else 0.0
        lines.append(f"{taken} are {epochs:.3g} epochs of the {len(rows):,} sequences of {rows.length} tokens")
    else:
        lines += [
            f"{weight:.1%} of the sequences are of {share}: {weight * seen / size:.3g} epochs of "
            f"its {size:,} sequences of {rows.length} tokens"
            for (share, weight), size in zip(shares_of(data.corpus).items(), np.diff(mixed.ends, prepend=0).tolist())
        ]
    skipped = list_skipped(data.corpus) if Path(data.corpus).is_dir() else []
    return [*lines, describe_skipped(skipped)] if skipped else lines


def describe_skipped(names: Sequence[str], shown: int = 5) -> str:
    """The files of a folder that are not read, in a sentence.

    >>> describe_skipped(["a.csv", "b.png"]), describe_skipped(["a.csv", "b.png"], shown=1)
    ('2 files are not read: a.csv, b.png', '2 files are not read: a.csv, ...')
    """
    verb = "files are" if len(names) > 1 else "file is"
    return f"{len(names):,} {verb} not read: {', '.join(names[:shown])}{', ...' * (len(names) > shown)}"
