"""A recipe: everything that rebuilds a run, as one frozen dataclass, saved beside the weights.

    Recipe = method + data + backbone + training (+ distillation) + generation + parallel

Each part is a frozen dataclass of its own, so a recipe compares, prints and saves as it is written. What must hold: a
value that has no meaning is refused when the recipe is made, before any data is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from duality.data import DEFAULT_SOURCE, TEXT_COLUMN, Padding
from duality.data.named import shares_of
from duality.files import DocumentRule
from duality.protocols import Backbone, Distillation, Method, Tail
from duality.tokenizers.specs import BPE, TokenizerSpec
from duality.training.settings import Parallel, Training

_MOST_STEPS = 100_000_000  # of a sample: their levels are made at once
IMPORTED = "imported from "  # how the source of a recipe begins whose weights others have trained


@dataclass(frozen=True)
class Data:
    """The data: a corpus (a named source, a file, a folder), its tokenizer and its sequences."""

    corpus: str = DEFAULT_SOURCE
    tokenizer: TokenizerSpec = BPE(vocab_size=2048)
    length: int = 128
    validation: float = 0.05
    split: Literal["auto", "document", "position"] = "auto"
    packing: Literal["wrap", "document"] = "wrap"
    labels: bool = False
    padding: Padding = "model"
    """What follows the end of a document, if packing is "document": end-of-text tokens that are corrupted, predicted
    and paid for like all others, so that the model learns where a document ends ("model"); the same, with a training
    step that pays for a tenth of them, so that it learns the text sooner ("light"); or nothing, as in the paper's
    LM1B without packing ("ignore"). If packing is "wrap" it has no effect: the padding of the last sequence is
    ignored."""
    documents: DocumentRule = "auto"
    """What a document is: every non-blank line of a text file ("lines"), or a whole text file unless its named source
    has another rule ("auto"). A line of a .jsonl file and a row of a .csv or .tsv file is always a document."""
    column: str = TEXT_COLUMN
    """Where the text of such a line or row is: the key, or the name of the column."""
    eos: bool = True
    """Whether an end-of-text token follows every document."""
    stream: int = 0
    """How many documents are read at a time while training goes on, for a corpus that is larger than the disk; 0 reads
    all of them before. What is held out for validation, and what a tokenizer is trained on, is of the first ones."""

    def __post_init__(self) -> None:
        if not self.corpus.strip():
            raise ValueError("data.corpus is empty: give a file, a folder, or a name that `duality data list` shows")
        if not 1 <= self.length < 1 << 63:
            raise ValueError(f"data.length is {self.length}: a sequence needs at least 1 token, and less than 2**63")
        if not self.column:
            raise ValueError(
                "data.column is empty: name the key of a .jsonl file, or the column of a .csv or .tsv file, that holds "
                f"the text; it is {TEXT_COLUMN!r} if not given"
            )
        if not self.eos and self.packing == "document" and self.padding != "ignore":
            raise ValueError(
                f"data.eos=false with data.packing=document and data.padding={self.padding}: what follows a document "
                "would be its only end-of-text tokens; set data.padding=ignore, or data.eos=true"
            )
        if self.stream < 0:
            raise ValueError(
                f"data.stream is {self.stream}: give a number of documents to read at a time, or 0 for all"
            )
        if self.stream and shares_of(self.corpus):
            raise ValueError(
                f"data.stream={self.stream} with a mixture of corpora: only one corpus can be streamed; set "
                "data.stream=0, or give one corpus"
            )
        if self.labels and self.packing == "wrap":
            raise ValueError(
                "data.labels with data.packing=wrap: a wrapped sequence may hold several documents and so several "
                "labels; set data.packing=document"
            )


@dataclass(frozen=True)
class Generation:
    """How a model is sampled if nothing else is said: what `duality sample` and ``Model.sample`` do by default.

    Measurements (`quality`, `compare`, `reproduce`) do not read it: there every setting is stated.
    """

    steps: int | None = None
    """network calls of a sample; None is the sampler's own number: 32, or one for each token (autoregressive)."""
    sampler: str = "own"
    tail: Tail = "ancestral"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.steps is not None and not 1 <= self.steps <= _MOST_STEPS:
            raise ValueError(f"steps is {self.steps}: a sample takes at least 1 step, and at most {_MOST_STEPS:,}")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}: it must be positive; 1 changes nothing")


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. With a ``distillation`` it begins from a trained model of the same method."""

    name: str
    summary: str
    source: str
    method: Method
    data: Data
    backbone: Backbone
    training: Training
    distillation: Distillation | None = None
    generation: Generation = Generation()
    parallel: Parallel = Parallel()

    def __post_init__(self) -> None:
        # a run folder gets the name of its recipe, which may have been read from a file of somebody else
        if not self.name.isprintable() or not re.fullmatch(r"(?![ .])[^/\\:]{1,100}", self.name):
            raise ValueError(
                f"Recipe.name is {self.name!r:.120}: it must be a plain name of 1 to 100 characters without / \\ : and "
                "control characters, and not begin with a point or a space; give it such a name"
            )
        if self.distillation is not None and self.training.steps != self.distillation.steps:
            raise ValueError(
                f"training.steps is {self.training.steps}, and {self.distillation.rounds} rounds of "
                f"{self.distillation.round_steps} steps are {self.distillation.steps}: set the rounds instead"
            )
        if self.distillation is not None and self.training.lora:
            raise ValueError(
                f"training.lora is {self.training.lora} in a distillation: its teacher is a copy of all weights of the "
                "student; distill without adapters, or finetune the result with them"
            )
