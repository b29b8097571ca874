"""A recipe: everything that rebuilds a run, as one frozen dataclass, saved beside the weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from duality.data.mixtures import shares_of
from duality.data.named import DEFAULT_SOURCE
from duality.data.packing import Padding
from duality.data.readers.records import TEXT_COLUMN
from duality.files.archives import DocumentRule
from duality.methods.duo import Duo
from duality.protocols import Backbone, Method, Tail
from duality.tokenizers.specs import BPE, TokenizerSpec
from duality.training.distillation import Distillation
from duality.training.settings import Parallel, Training, of_all_weights


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
    and paid for like all others, so that the model learns where a document ends ("model"), or nothing, as in the
    paper's LM1B without packing ("ignore"). If packing is "wrap" it has no effect: the padding of the last sequence is
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
        if self.length < 1:
            raise ValueError(f"data.length is {self.length}: a sequence needs at least 1 token")
        if not self.column:
            raise ValueError(
                "data.column is empty: name the key of a .jsonl file, or the column of a .csv or .tsv file, that holds "
                f"the text; it is {TEXT_COLUMN!r} if not given"
            )
        if not self.eos and self.packing == "document" and self.padding == "model":
            raise ValueError(
                "data.eos=false with data.packing=document and data.padding=model: what follows a document would be "
                "its only end-of-text tokens; set data.padding=ignore, or data.eos=true"
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
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps is {self.steps}: a sample takes at least 1 step")
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


FINETUNED = "-finetuned"


def duo_of(base: Recipe) -> Duo:
    """The method of a Duo recipe."""
    assert isinstance(base.method, Duo)
    return base.method


def default_round_steps(steps: int) -> int:
    """The steps of a round for a base of this many: a hundredth, as in the paper, but at least 150.

    The base of a laptop recipe has a few thousand steps. In a hundredth of them the student does not come near its
    teacher, and the next round begins from a worse one.

    >>> default_round_steps(2_600), default_round_steps(1_000_000)
    (150, 10000)
    """
    return max(steps // 100, 150)


def distilled(base: Recipe, distillation: Distillation, step: int) -> Recipe:
    """The distillation of a run of ``base`` that has been trained for ``step`` steps, in the paper's proportions.

    The learning rate is a fifth of that of the base, with a warm-up of a hundredth of the steps, then constant; the
    average is over the last tenth of a round. At rounds of 10 000 steps this is the paper's 6e-5, 500 and 0.999.
    The batch is a quarter of that of the base, as the paper's 128 of 512, but at least 64, or the whole batch of a base
    that has less: a quarter of a small batch has so much noise in its gradient that short rounds learn little.
    It is sampled, if nothing else is said, with as many steps as the last round has taught, with the tail that is best
    after this distillation, and at temperature 1 if the distillation itself sharpens. All weights are trained, also
    of a base that had adapters or frozen parts.
    """
    before, total, kind = of_all_weights(base.training), distillation.steps, type(distillation).__name__.lower()
    training = replace(
        before,
        steps=total,
        batch_size=min(before.batch_size, max(before.batch_size // 4, 64)),
        learning_rate=before.learning_rate / 5,
        warmup=max(1, total // 100),
        decay=0.0,
        ema=max(0.0, 1 - 10 / distillation.round_steps),
        log_every=min(before.log_every, distillation.round_steps),
        eval_every=distillation.round_steps,
        save_every=min(before.save_every, distillation.round_steps),
    )
    return replace(
        base,
        name=f"{base.name}-{kind}",
        summary=f"{base.name}, distilled with {kind} for {distillation.rounds} rounds",
        source=f"{base.name} at step {step}",
        training=training,
        distillation=distillation,
        generation=replace(
            base.generation,
            steps=distillation.sampling_steps,
            tail=distillation.tail,
            temperature=1.0 if distillation.sharpens else base.generation.temperature,
        ),
    )


def finetuned(base: Recipe, step: int, steps: int | None = None, adapters: bool = False) -> Recipe:
    """The finetuning of a model of ``base`` that has been trained for ``step`` steps: its recipe with less training.

    It takes ``steps`` steps; if not given, a tenth of those of the base, but at least 100. The learning rate is a fifth
    of that of the base, as for a distillation, or that of the base for ``adapters``, which are new; its warm-up is a
    twentieth of the steps. The average is over the last tenth of the steps, or shorter if that of the base is. Only the
    last phase of the method is trained, because the others have ended. All weights are trained.
    """
    before = of_all_weights(base.training)
    steps = max(before.steps // 10, 100) if steps is None else steps
    training = replace(
        before,
        steps=steps,
        learning_rate=before.learning_rate if adapters else before.learning_rate / 5,
        warmup=max(1, steps // 20),
        ema=min(before.ema, max(0.0, 1 - 10 / steps)),
        log_every=max(1, min(before.log_every, steps // 10)),
        eval_every=min(before.eval_every, max(1, steps // 4)),
        save_every=min(before.save_every, max(1, steps // 4)),
        phase_steps=0,
    )
    return replace(
        base,
        name=f"{base.name.removesuffix(FINETUNED)}{FINETUNED}",
        summary=f"{base.name}, finetuned",
        source=f"{base.name} at step {step}",
        training=training,
        distillation=None,
    )


def derived(
    base: Recipe,
    name: str,
    summary: str,
    source: str,
    method: Method,
    steps: int | None = None,
    generation: Generation | None = None,
) -> Recipe:
    """``base`` with another method, which is sampled in its own manner; another number of steps if one is given."""
    return replace(
        base,
        name=name,
        summary=summary,
        source=source,
        method=method,
        training=base.training if steps is None else replace(base.training, steps=steps),
        generation=generation or Generation(),
    )
