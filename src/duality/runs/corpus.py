"""The corpus of a run: the text that it was trained on, and other text to measure it on.

What must hold: a corpus that was moved is the run's own exactly if its text is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from duality.data import TEXT_COLUMN
from duality.data.corpus import Corpus, encode_corpus
from duality.data.documents import find_evaluated_part, is_there, locate
from duality.data.named import datasets
from duality.data.packing import Sequences
from duality.data.readers import has_records
from duality.files.progress import Reporter, silent
from duality.hub import package
from duality.models.folder import CORPUS, read_identity, read_recipe, read_tokenizer
from duality.ranks import job
from duality.recipes.catalogue import modify
from duality.recipes.corpus import make_sequences, prepare_corpus
from duality.recipes.recipe import Recipe
from duality.tokenizers.specs import FROM_FILES
from duality.tokenizers.tokenizer import FILE

if TYPE_CHECKING:
    from duality.models.model import Model

DataInMemory = Iterable[str] | Tensor | Sequence[Tensor]
TrainingData = str | Path | DataInMemory


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
    tokenizer, identity = read_tokenizer(folder), read_identity(folder)
    if identity["tokenizer"] != tokenizer.fingerprint:
        raise ValueError(
            f"{folder / CORPUS} is of another tokenizer than {folder / FILE}: put back the files that belong to the run"
        )
    if moved_to is not None:
        recipe = modify(recipe, corpus=moved_to)
    else:
        check_present(folder, recipe)
        if Path(recipe.data.corpus).exists():
            report(f"the corpus of {folder} is read at {recipe.data.corpus}")

    changed = ValueError(
        f"the corpus of {folder} has changed since the run began: restore it, or start a new run"
        if moved_to is None
        else f"{moved_to} has another text than {folder} was trained on: give the same text, or start a new run in "
        "another folder"
    )

    def check_text(sha256: str) -> None:
        """Refuse a text whose checksum is not that of the run's corpus, before it is tokenized."""
        if identity.get("text", sha256) != sha256:
            raise changed

    own = tokenizer if isinstance(recipe.data.tokenizer, FROM_FILES) else None
    corpus = prepare_corpus(recipe, report, check_text, own)
    found = corpus.checksums()
    if not _is_imported(folder) and {"text": found["text"], **identity} != found:
        raise changed  # to other tokens than the run began with
    return corpus


def check_present(folder: Path, recipe: Recipe) -> None:
    """Refuse a run whose corpus is not where it was, and say what to do."""
    place = recipe.data.corpus
    if _is_imported(folder) and place == read_recipe(folder).data.corpus and place not in datasets():
        raise ValueError(
            f"{folder} was imported without the text that it was trained on: give a text with --corpus PATH (eval, "
            "distill, quality, variance), or with eval --data PATH"
        )
    if not is_there(place) and package.exists(folder):
        raise ValueError(
            f"the corpus of {folder} is {place}, which is not here: say where it is (--corpus PATH, corpus=), or give "
            "another text to eval (--data, data=)"
        )
    if not is_there(place):
        raise ValueError(
            f"the corpus of {folder} is not at {place} any more: put it back, or say where it is now: "
            f"`duality train {read_recipe(folder).name} --out {folder} --resume --data PATH` keeps the new place "
            "in the run, and eval, distill, quality and variance take --corpus PATH"
        )


def _is_imported(folder: Path) -> bool:
    """Whether the run in ``folder`` does not know its corpus, because others have trained it."""
    if not (folder / CORPUS).is_file():
        return False
    identity = read_identity(folder)
    return not identity["train"] and not identity["validation"]


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
        names, chosen = model.label_names or None, column
        if chosen is None:  # the column of its own corpus, if there are files of the user that have columns
            places = (place for place in locate(data) if place.path is not None and place.dataset is None)
            has_columns = any(has_records(file.path) for place in places for file in place.files())
            chosen = own.column if has_columns else TEXT_COLUMN
        encode = partial(encode_corpus, data, model.tokenizer, documents=own.documents, eos=own.eos, progress=report)
        store = job().in_turn(lambda: encode(label_names=names, column=chosen, part=find_evaluated_part(data)))
    else:
        parts = job().in_turn(lambda: corpus_of_run(folder, model.recipe, report, corpus))
        store = parts.validation if split == "validation" else parts.train
    return make_sequences(own, store, model.tokenizer)
