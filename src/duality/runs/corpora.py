"""The corpus of a run: prepared for training, described, measured on, or written from memory.

Data that is given from Python, texts or tensors of ids, is written into ``data/`` of the run folder and trained on from
there, so that a run can be resumed and measured without the program that started it. What must hold: data that is in a
run folder already is never replaced; other data for the same run is refused; a corpus that was moved is the run's own
exactly if its text is; the sequences of a recipe are made by ``sequences`` alone, so that training and every
measurement have the same packing and padding.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from duality.data.corpus import Corpus, accept, encode_corpus, prepare
from duality.data.documents import Document, streamed_documents
from duality.data.loader import Loader
from duality.data.memory import write_corpus
from duality.data.mixtures import MixedOrder, shares_of
from duality.data.named import PartName, datasets
from duality.data.packing import Sequences
from duality.data.places import all_lines, evaluated_part, has_columns, held_out_part, is_there, skipped_files
from duality.data.readers.records import TEXT_COLUMN
from duality.data.store import TokenStore
from duality.data.stream import Blocks, StreamLoader
from duality.files.progress import Reporter, silent
from duality.files.temporary import remove_leftovers, temporary_name
from duality.hub import package
from duality.models.folder import DATA, STREAM, read_recipe, with_corpus
from duality.models.provenance import CORPUS, check_corpus, check_text, is_imported, read_identity, read_tokenizer
from duality.protocols import Vocabulary
from duality.ranks import job
from duality.recipes.recipe import Data, Recipe
from duality.tokenizers.specs import FROM_FILES
from duality.tokenizers.tokenizer import FILE, Tokenizer

if TYPE_CHECKING:
    from duality.models.model import Model

TrainingData = str | Path | Iterable[str] | Tensor | Sequence[Tensor]


def prepared(
    recipe: Recipe,
    report: Reporter = silent,
    check_text: Callable[[str], None] = accept,
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


def corpus_of_run(
    folder: Path | str, recipe: Recipe, report: Reporter = silent, moved_to: str | Path | None = None
) -> Corpus:
    """The corpus that the run in ``folder`` was trained on; ``moved_to`` is where it is now, if it was moved.

    The recipe of somebody else's run may name any file of this machine. It is read only for a run that says which
    tokens it must give, in the run's own tokenizer, and a message says what is read. Another text than the run's own
    is not tokenized. A tokenizer that came from a file, from the hub or from another model is read from the run's
    folder. A run that was imported does not say which tokens: its text is a dataset by name, or one that the user
    gives.
    """
    folder = Path(folder)
    tokenizer = read_tokenizer(folder)
    if read_identity(folder)["tokenizer"] != tokenizer.fingerprint:
        raise ValueError(
            f"{folder / CORPUS} is of another tokenizer than {folder / FILE}: put back the files that belong to the run"
        )
    if moved_to is not None:
        recipe = with_corpus(recipe, moved_to)
    else:
        check_present(folder, recipe)
        if Path(recipe.data.corpus).exists():
            report(f"the corpus of {folder} is read at {recipe.data.corpus}")
    place = None if moved_to is None else str(moved_to)
    own = tokenizer if isinstance(recipe.data.tokenizer, FROM_FILES) else None
    corpus = prepared(recipe, report, partial(check_text, folder, place), own)
    check_corpus(folder, corpus, place)
    return corpus


def check_present(folder: Path | str, recipe: Recipe) -> None:
    """Refuse a run whose corpus is not where it was, and say what to do."""
    place = recipe.data.corpus
    if is_imported(Path(folder)) and place == read_recipe(Path(folder)).data.corpus and place not in datasets():
        raise ValueError(
            f"{folder} was imported without the text that it was trained on: give a text with --corpus PATH (eval, "
            "distill, quality, variance), or with eval --data PATH"
        )
    if not is_there(place) and package.exists(Path(folder)):
        raise ValueError(
            f"the corpus of {folder} is {place}, which is not here: say where it is (--corpus PATH, corpus=), or give "
            "another text to eval (--data, data=)"
        )
    if not is_there(place):
        raise ValueError(
            f"the corpus of {folder} is not at {place} any more: put it back, or say where it is now: "
            f"`duality train {read_recipe(Path(folder)).name} --out {folder} --resume --data PATH` keeps the new place "
            "in the run, and eval, distill, quality and variance take --corpus PATH"
        )


def sequences(data: Data, store: TokenStore, tokenizer: Tokenizer, length: int | None = None) -> Sequences:
    """The sequences of a store as a recipe packs and pads them; of another ``length`` if one is given."""
    return Sequences(store, data.length if length is None else length, data.packing, data.padding, tokenizer.separator)


def loader(recipe: Recipe, corpus: Corpus, folder: Path) -> Loader | StreamLoader:
    """The batches that a recipe is trained on; blocks of a streamed corpus are kept in the run's folder for a while."""
    data, training = recipe.data, recipe.training
    rows = partial(sequences, data, tokenizer=corpus.tokenizer)
    if not data.stream:
        order = mixed_order(data, corpus, training.seed)
        return Loader(rows(corpus.train), training.batch_size, training.seed, order)
    apart = data.split == "auto" and held_out_part(data.corpus, streamed=True) is not None
    part: PartName | None = "train" if apart else None

    def documents(start: int) -> Iterator[Document]:
        return streamed_documents(data.corpus, start, data.documents, data.column, part=part)

    blocks = Blocks(corpus.train, documents, data.stream, corpus.tokenizer, rows, folder / STREAM, data.eos)
    return StreamLoader(blocks, training.batch_size, training.seed)


def mixed_order(data: Data, corpus: Corpus, seed: int) -> MixedOrder | None:
    """The order in which a training visits a mixture of corpora; None if there is one corpus."""
    if not corpus.groups:
        return None
    shares, rows = shares_of(data.corpus), sequences(data, corpus.train, corpus.tokenizer)
    documents = np.cumsum(corpus.groups)
    if data.packing == "document":
        ends = rows.window_ends[documents - 1]
    else:  # a sequence that has the end of a corpus and the beginning of the next one is of the first
        ends = -(-corpus.train.document_ends[documents - 1] // rows.length)
    sizes = np.diff(ends, prepend=0)
    for share, size in zip(shares, sizes, strict=True):
        if size < 1:
            raise ValueError(
                f"{share.corpus} has no sequence of its own in the mixture: give more of it, or leave it out"
            )
    return MixedOrder(tuple(ends.tolist()), tuple(share.weight for share in shares), seed)


def vocabulary_of(data: Data, corpus: Corpus) -> Vocabulary:
    """What a method needs to know of a corpus."""
    rows = sequences(data, corpus.train, corpus.tokenizer)
    names, mixed = corpus.label_names, mixed_order(data, corpus, 0)

    def counts() -> torch.Tensor:
        if mixed is None:
            return token_counts(rows, 0, len(rows))
        # as often as training takes the sequences of each corpus
        starts, sizes = (0, *mixed.ends[:-1]), np.diff(mixed.ends, prepend=0).tolist()
        each = [token_counts(rows, start, end) for start, end in zip(starts, mixed.ends)]
        shares = [weight * len(rows) / size for weight, size in zip(mixed.weights, sizes)]
        return torch.stack([share * found for share, found in zip(shares, each)]).sum(0)

    return Vocabulary(corpus.tokenizer.vocab_size, len(names), counts)


def token_counts(rows: Sequences, first: int, last: int, block: int = 1 << 14) -> torch.Tensor:
    """How often each token is in the sequences from ``first`` to before ``last``; they are read block by block."""
    counts = torch.zeros(rows.store.vocab_size, dtype=torch.float64)
    for start in range(first, last, block):
        ids, valid = rows.rows(range(start, min(start + block, last)))
        counts += torch.bincount(ids[valid], minlength=len(counts))
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


def facts(recipe: Recipe, corpus: Corpus) -> list[str]:
    """What a training begins with: the summary, how often it will see the corpus, and which files are not in it."""
    training, rows = recipe.training, sequences(recipe.data, corpus.train, corpus.tokenizer)
    epochs = training.steps * training.batch_size / len(rows) if len(rows) else 0.0
    if recipe.data.stream:
        return [
            *summary(recipe.data, corpus),
            f"these are the first {recipe.data.stream:,} documents; the others are read as many at a time while "
            f"training goes on: {training.steps:,} steps of {training.batch_size} sequences of {rows.length} tokens",
        ]
    lines = [
        *summary(recipe.data, corpus),
        f"{training.steps:,} steps of {training.batch_size} sequences are {epochs:.3g} epochs of the {len(rows):,} "
        f"sequences of {rows.length} tokens",
    ]
    mixed = mixed_order(recipe.data, corpus, training.seed)
    if mixed is not None:
        seen = training.steps * training.batch_size
        lines[-1:] = [
            f"{share.weight:.1%} of the sequences are of {share.corpus}: {share.weight * seen / size:.3g} epochs of "
            f"its {size:,} sequences of {rows.length} tokens"
            for share, size in zip(shares_of(recipe.data.corpus), np.diff(mixed.ends, prepend=0).tolist())
        ]
    skipped = skipped_files(recipe.data.corpus) if Path(recipe.data.corpus).is_dir() else []
    return [*lines, skipped_line(skipped)] if skipped else lines


def skipped_line(names: Sequence[str], shown: int = 5) -> str:
    """The files of a folder that are not read, in a sentence.

    >>> skipped_line(["a.csv", "b.png"]), skipped_line(["a.csv", "b.png"], shown=1)
    ('2 files are not read: a.csv, b.png', '2 files are not read: a.csv, ...')
    """
    verb = "files are" if len(names) > 1 else "file is"
    return f"{len(names):,} {verb} not read: {', '.join(names[:shown])}{', ...' * (len(names) > shown)}"


def sequences_of_run(
    model: Model,
    folder: Path | str,
    *,
    data: str | Path | None = None,
    column: str | None = None,
    split: Literal["validation", "train"] = "validation",
    corpus: str | Path | None = None,
    report: Reporter = silent,
) -> Sequences:
    """A part of the corpus that the run in ``folder`` was trained on, or other ``data`` in the run's own tokens.

    The texts of other data are in ``column``, or in the column of the run's own corpus. ``corpus`` is where the run's
    own corpus is now, if it was moved.
    """
    own = model.recipe.data
    if column is not None and data is None:
        raise ValueError(
            f"the column {column!r} belongs to other data: give it too (--data); the run's own corpus is read with "
            f"the column {own.column!r} that it was trained on"
        )
    if data is not None and corpus is not None:
        raise ValueError(
            f"other text ({data}) and a new place of the run's own corpus ({corpus}) are two things: give one of "
            "--data (data=) and --corpus (corpus=)"
        )
    if data is not None:
        names = model.label_names or None
        chosen = column if column is not None else own.column if has_columns(data) else TEXT_COLUMN
        store = job().in_turn(
            lambda: encode_corpus(
                data,
                model.tokenizer,
                label_names=names,
                documents=own.documents,
                column=chosen,
                eos=own.eos,
                part=evaluated_part(data),
                progress=report,
            )
        )
    else:
        parts = job().in_turn(lambda: corpus_of_run(folder, model.recipe, report, corpus))
        store = parts.validation if split == "validation" else parts.train
    return sequences(own, store, model.tokenizer)


def with_data(recipe: Recipe, data: TrainingData, folder: Path) -> Recipe:
    """The recipe on other data: a path, a named corpus, or what is in memory, which is written into ``folder``."""
    if isinstance(data, (str, Path)):
        return with_corpus(recipe, data)
    target = folder / DATA
    remove_leftovers(target)
    temporary = temporary_name(target)
    try:
        written = write_corpus(data, temporary)
        path = target / written.path.name
        if not target.exists():
            os.replace(temporary, target)
        elif not path.is_file() or not filecmp.cmp(written.path, path, shallow=False):
            raise ValueError(f"{target} holds other data than was given: give the same, or choose another out folder")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    own = replace(recipe.data, column=TEXT_COLUMN)  # of the file that was written
    if written.tokenizer is not None:
        own = replace(own, tokenizer=written.tokenizer)
    return with_corpus(replace(recipe, data=own), path)
