"""Scorers: measures of texts that need no language model. A scorer is a function, text in, numbers out.

    def lengths(texts):                                        # in my_scores.py
        return {"length": [len(text) for text in texts]}       # duality quality RUN --score my_scores:lengths

For every column there is one number for each text, NaN (or None) where a text has none. The value of a column is the
mean over the numbers that exist, and its 95 % interval is a bootstrap over texts (of no width if all are equal). So a
statistic of the whole set of texts is given as numbers whose mean is the statistic and whose spread is right: the share
of distinct texts as 1 / multiplicity, a mean over pairs as jackknife pseudo-values (``molecules.Molecules`` shows
both).

A scorer is found by name (``SCORERS``, or an entry point of the group ``duality.scorers``) or as ``module:function``,
with the current folder importable. One that needs more than the texts is a class with a class method ``from_context``,
which is given a ``ScorerContext``: the training texts of the first run. What must hold: a result of the wrong shape is
refused with its reason; numbers that were kept are used again only if the scorer is the same one (``key_of``).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch

from duality.evaluation import SCORERS
from duality.evaluation.metrics import Values, bootstrap
from duality.evaluation.samples import MEASURES, Score
from duality.files.atomic import file_sha256
from duality.files.progress import Reporter, silent
from duality.models.folder import read_identity, read_recipe
from duality.runs.corpus import corpus_of_run
from duality.tokenizers.tokenizer import text_before_end

Texts = Sequence[str]
Numbers = Mapping[str, Sequence[float | None]]
Column = list[float | None]  # as JSON has it: None for NaN


@runtime_checkable
class Scorer(Protocol):
    """Gives each text a number in each of its ``columns``. ``version`` changes when its numbers may change.

    Empty ``columns`` are those that a call returns.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    def __call__(self, texts: Texts) -> Numbers: ...


@runtime_checkable
class Drawing(Protocol):
    """A scorer that can also draw texts: files with the name of ``path`` and endings of its own, which it returns."""

    def draw(self, texts: Texts, path: Path) -> list[Path]: ...


@dataclass(frozen=True)
class ScorerContext:
    """What a scorer may need of the first run: its corpus, and the texts of both parts, read when they are asked for.

    ``training_id`` identifies the texts for training without reading them.
    """

    training_texts: Callable[[], Sequence[str]]
    training_id: str = ""
    held_out_texts: Callable[[], Sequence[str]] = tuple
    corpus: str = ""


@dataclass(frozen=True)
class FunctionScorer:
    """A function of texts as a scorer. ``version`` is the checksum of the file that defines it."""

    name: str
    function: Callable[[Texts], Numbers]
    version: str = ""
    columns: tuple[str, ...] = ()

    def __call__(self, texts: Texts) -> Numbers:
        return self.function(texts)


def find_scorers(
    specs: Sequence[Scorer | str], run: Path, report: Reporter = silent, moved_to: str | Path | None = None
) -> list[Scorer]:
    """The scorers that are named; those that need training texts are given those of ``run``."""
    context = _context_of(run, report, moved_to) if specs else None
    return [find_scorer(each, context) if isinstance(each, str) else each for each in specs]


def _context_of(run: Path, report: Reporter = silent, moved_to: str | Path | None = None) -> ScorerContext:
    """What scorers may ask of a run: the documents that it was trained on; ``moved_to`` is where its corpus is now."""
    identity, recipe = read_identity(run), read_recipe(run)

    def read_texts(part: Literal["train", "validation"]) -> list[str]:
        report(f"reading the texts for {'training' if part == 'train' else part} of {run}")
        corpus = corpus_of_run(run, recipe, report, moved_to)
        store = corpus.train if part == "train" else corpus.validation
        ends = store.document_ends.tolist()
        return [text_before_end(corpus.tokenizer, store[start:stop]) for start, stop in zip([0, *ends], ends)]

    return ScorerContext(
        partial(read_texts, "train"),
        "-".join([identity["tokenizer"], *identity["train"]]),
        partial(read_texts, "validation"),
        str(recipe.data.corpus),
    )


def find_scorer(spec: str, context: ScorerContext | None = None) -> Scorer:
    """The scorer that ``spec`` names: a registered name, an entry point, or ``module:function``."""
    made = SCORERS.find(spec, "function")
    if isinstance(made, type):
        from_context, known = getattr(made, "from_context", None), context or ScorerContext(tuple)
        made = SCORERS.call(spec, from_context, known) if from_context else SCORERS.call(spec, made)
    if isinstance(made, Scorer):
        return made
    if not callable(made):
        raise ValueError(f"the scorer {spec!r} is a {type(made).__name__}: name a function of a sequence of texts")
    try:
        file = inspect.getsourcefile(made if inspect.isroutine(made) else type(made))
    except TypeError:  # no file defines it
        file = None
    return FunctionScorer(spec, made, file_sha256(Path(file))[:12] if file and Path(file).is_file() else "")


def key_of(scorer: Scorer) -> str:
    """The key of a scorer's numbers in the file of scores."""
    return f"{scorer.name} ({scorer.version})" if scorer.version else scorer.name


def score_texts(scorer: Scorer, texts: Texts) -> dict[str, Column]:
    """The numbers of texts, checked, as they are kept: for each column a number for each text, None for NaN."""
    found: object = SCORERS.call(scorer.name, scorer, texts)
    who = f"the scorer {scorer.name!r}"
    if not isinstance(found, Mapping) or not found:
        got = "no column" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise ValueError(f"{who} gave {got}: it must return a dictionary with a list of numbers for each column")
    if scorer.columns and set(found) != set(scorer.columns):
        raise ValueError(
            f"{who} gave the columns {', '.join(map(str, found))}, and says that it has {', '.join(scorer.columns)}: "
            "both must be the same"
        )
    columns: dict[str, Column] = {name: [] for name in found}
    for name, values in found.items():
        if not isinstance(name, str) or not name or name in MEASURES:
            raise ValueError(f"{who} has a column {name!r}: a column has a name, and none of {', '.join(MEASURES)}")
        where = f"the column {name!r} of {who}"
        if not isinstance(values, Iterable):
            raise ValueError(f"{where} is a {type(values).__name__}: it must be a list of numbers")
        listed = list(values)
        if len(listed) != len(texts):
            raise ValueError(
                f"{where} has {len(listed)} numbers for {len(texts)} texts: it must have one for each text"
            )
        for place, value in enumerate(listed):
            if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.numel() == 1):
                value = value.item()
            if value is not None and not isinstance(value, (int, float)):
                raise ValueError(
                    f"{where} has {value!r} for text {place}: it must be a number, or NaN if the text has none"
                )
            if value is not None and math.isinf(value):
                raise ValueError(
                    f"{where} is infinite for text {place}: give a finite number, or NaN if the text has none"
                )
            columns[name].append(None if value is None or math.isnan(value) else float(value))
    return columns


def summary(key: str, column: Sequence[float | None]) -> Score:
    """The mean of a column with its interval; ``key`` is the scorer's."""
    values = Values.of_column(column)
    if not (count := int(values.counts.sum())):
        return Score(None, None, None, 0, key)
    found = bootstrap(values)
    _, low, high = found.spread
    return Score(found.value, low, high, count, key)
