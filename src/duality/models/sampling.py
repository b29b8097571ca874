"""Samples of a model: what a user asks for, as wrappers of the model's denoiser, and the samples that come out.

    known tokens           a prompt, a suffix, the text around blanks: they stay in place (``Clamped``)
    label, guidance        a class-conditional model writes in a class (``with_labels``, ``Guided``)
    temperature, top-p     the belief is made sharper or flatter, or its tail is cut off
    memo                   a belief that depends on the tokens alone is computed once for the same tokens

The order from the network outwards is label or guidance, temperature, top-p, known tokens, memo.

A model writes rows of a fixed number of tokens. A document that is shorter ends with an end-of-text token; what follows
it is padding or, for a model of wrapped text, other documents. The text of a sample is what stands before the first
end-of-text. Known tokens are never cut off: with a suffix, or with text behind a blank, the end is looked for after the
last known token.

What must hold: every sample has the known tokens in their places, whatever else is asked for; its tokens are the whole
row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from duality.denoisers.clamp import Clamped, ClampedScore
from duality.denoisers.filters import Temperature, TopP
from duality.denoisers.memo import Memoized
from duality.denoisers.wrapping import network_of, unwrap
from duality.files.progress import Pace, Reporter, showing
from duality.models.requests import FillRequest, SampleRequest
from duality.models.size import check_sampling
from duality.models.trained import TrainedModel
from duality.protocols import AnyDenoiser, Denoiser, Score, Tail, VectorDenoiser
from duality.recipes.recipe import Generation
from duality.samplers.choice import grid_named
from duality.samplers.generate import Frame, generate
from duality.tokenizers.tokenizer import Tokenizer, text_before_end

Watch = Callable[[Frame], None]
SampleWatch = Callable[["Sample"], None]
Wrap = Callable[[AnyDenoiser], AnyDenoiser]
Row = list[int | None]  # the tokens of a sample before it is written; None where the model writes
_NO_TOKENS_IN_VECTORS = (
    "it writes vectors, in which no token can be held in place; leave known text out, or sample a discrete model"
)


@dataclass(frozen=True)
class Sample:
    """A sample as text and as tokens, and how it was made: number ``index`` of ``seed``, in ``steps`` network calls.

    ``text`` ends before the first end-of-text token; ``full_text`` is the text of all ``tokens``.

    >>> Sample("A fox.", "A fox.<|endoftext|>", [65, 32, 102, 111, 120, 46, 256], 0, 0, steps=8, tail="greedy").text
    'A fox.'
    >>> Sample("A", "A", [65], 0, 7, steps=8, tail="greedy", temperature=0.8).settings
    '8 steps, greedy tail, temperature 0.8, seed 7'
    """

    text: str
    full_text: str
    tokens: list[int]
    index: int
    seed: int
    steps: int
    tail: Tail
    temperature: float = 1.0

    @property
    def settings(self) -> str:
        """How it was made, in words."""
        warmth = "" if self.temperature == 1 else f", temperature {self.temperature:g}"
        return f"{self.steps} steps, {self.tail} tail{warmth}, seed {self.seed}"

    def row(self, trained_steps: int, full: bool = False) -> dict[str, object]:
        """The sample as a JSON object, with the step of the checkpoint that wrote it; ``full`` adds the full text."""
        how = {name: getattr(self, name) for name in ("index", "seed", "steps", "tail", "temperature")}
        texts = {"text": self.text, "full_text": self.full_text} if full else {"text": self.text}
        return how | {"trained_steps": trained_steps} | texts | {"tokens": self.tokens}


def known_tokens(model: TrainedModel, request: SampleRequest | FillRequest) -> Row:
    """The tokens of a request that are known; what the model cannot do, or the machine cannot hold, is refused.

    Tokens behind those that the model writes, of a suffix or after a blank, need a model that can look ahead.
    """
    tokenizer, batch = model.tokenizer, min(request.num, request.batch_size)
    check_length = partial(check_sampling, model.denoiser, batch, device=model.device, num=request.num)
    what = (
        "fill" if isinstance(request, FillRequest) else "suffix" if request.suffix else "keep" if request.keep else ""
    )
    if what and isinstance(unwrap(model.denoiser), VectorDenoiser):
        raise ValueError(f"{what} with a Gaussian model: {_NO_TOKENS_IN_VECTORS}")
    if what and network_of(model.denoiser).causal:
        raise ValueError(
            f"{what} with an autoregressive model: it writes from left to right and cannot look ahead; use a prompt "
            "only, or sample a diffusion model"
        )
    if isinstance(request, FillRequest):
        return row_with_blanks(tokenizer, request.text, request.blank, request.tokens_per_blank, check_length)
    length = model.length if request.length is None else request.length
    check_length(length)
    if length < 1:
        raise ValueError(f"length is {length}: a sample needs at least 1 token")
    first, last = tokenizer.encode(request.prompt).tolist(), tokenizer.encode(request.suffix).tolist()
    free = length - len(first) - len(last)
    if free < 0:
        raise ValueError(
            f"prompt and suffix have {length - free} tokens, the sample {length}: shorten them or raise the length"
        )
    row: Row = [*first, *[None] * free, *last]
    for place, token in request.keep.items():
        if not (0 <= place < length and 0 <= token < tokenizer.vocab_size):
            raise ValueError(
                f"keep has token {token} at place {place}: places are 0 to {length - 1}, tokens 0 to "
                f"{tokenizer.vocab_size - 1}"
            )
        if row[place] not in (None, token):
            raise ValueError(
                f"keep has token {token} at place {place}, where prompt or suffix have {row[place]}: leave one out"
            )
        row[place] = token
    return row


def write_samples(
    model: TrainedModel,
    request: SampleRequest | FillRequest,
    watch: Watch | None = None,
    each: SampleWatch | None = None,
    wrap: Wrap | None = None,
    row: Row | None = None,
) -> list[Sample]:
    """The samples of a request, around its known tokens, or those of a ``row`` in their place.

    ``each`` gets every sample as soon as its batch is written. What was not chosen (None) is as the recipe says.
    """
    row = known_tokens(model, request) if row is None else row
    settings = dict(vars(model.recipe.generation))
    if request.sampler not in (None, settings["sampler"]):
        settings["steps"] = None  # another sampler than the recipe's has its own number of steps
    settings |= {name: chosen for name in settings if (chosen := getattr(request, name)) is not None}
    how = Generation(**settings)
    sampler = model.named_sampler(how.sampler, request.eta)
    steps = sampler.steps(len(row)) if how.steps is None else how.steps
    denoiser = transform(model.with_label(request.label, request.guidance), request.top_p, how.temperature)
    end, samples = _end_of_known(row), list[Sample]()
    denoiser = with_memo(_with_known(denoiser, row, model) if end else denoiser)

    def keep(batch: torch.Tensor) -> None:
        for tokens in batch.tolist():
            text, full_text = text_before_end(model.tokenizer, tokens, end), model.tokenizer.decode(tokens)
            sample = Sample(text, full_text, tokens, len(samples), request.seed, steps, how.tail, how.temperature)
            samples.append(sample)
            if each is not None:
                each(sample)

    with model.computing():
        generate(
            denoiser if wrap is None else wrap(denoiser),
            model.schedule,
            sampler,
            steps=steps,
            num=request.num,
            length=len(row),
            seed=request.seed,
            tail=how.tail,
            grid=grid_named(request.grid, how.sampler),
            batch_size=request.batch_size,
            device=model.device,
            watch=watch,
            each=keep,
        )
    return samples


@contextmanager
def show_sampling(
    report: Reporter, request: SampleRequest | FillRequest, watch: Watch | None = None
) -> Iterator[Watch]:
    """The steps of all batches of samples; ``watch`` gets them too."""
    with showing(report) as show:
        pace = Pace("sampling", 0, "steps")

        def show_frame(frame: Frame) -> None:
            pace.total = frame.steps * -(-request.num // max(request.batch_size, 1))
            pace.add(min(1, frame.step))  # step 0 is the start
            show(pace, "")
            if watch is not None:
                watch(frame)

        yield show_frame


# --- known tokens


def _end_of_known(row: Row) -> int:
    """The place behind the last known token; 0 if none is known."""
    return max((place for place, token in enumerate(row, 1) if token is not None), default=0)


def row_with_blanks(
    tokenizer: Tokenizer, text: str, blank: str, tokens_per_blank: int | None, check_length: Callable[[int], None]
) -> Row:
    """The text with ``tokens_per_blank`` unknown tokens in place of every blank.

    If not given, they are as many as a word of the text has on average, with the space beside it, rounded up.
    ``check_length`` may refuse the number of tokens, before a row of so many is made.

    >>> from duality.tokenizers.tokenizer import ByteTokenizer
    >>> row_with_blanks(ByteTokenizer(), "The _ sat on the _.", "_", None, lambda length: None).count(None)
    8
    """
    if not blank or blank not in text:
        raise ValueError(f"the text {text!r} has no blank {blank!r}: write one where the model is to fill in")
    if tokens_per_blank is not None and tokens_per_blank < 1:
        raise ValueError(f"tokens_per_blank is {tokens_per_blank}: a blank has at least 1 token")
    parts = text.split(blank)
    first, *others = rows = [tokenizer.encode(part).tolist() for part in parts]
    known, words = sum(map(len, rows)), sum(len(part.split()) for part in parts)
    if tokens_per_blank is None and not words:
        raise ValueError("the text has no word beside its blanks that shows how long a blank is: give tokens_per_blank")
    count = tokens_per_blank or -(-known // words)
    check_length(known + count * len(others))
    return [*first, *(token for ids in others for token in (*[None] * count, *ids))]


def _with_known(denoiser: AnyDenoiser, row: Row, model: TrainedModel) -> AnyDenoiser:
    """The denoiser that is certain of the known tokens."""
    tokens = torch.tensor([0 if token is None else token for token in row], device=model.device)
    known = torch.tensor([token is not None for token in row], device=model.device)
    if isinstance(denoiser, Denoiser):
        return Clamped(denoiser, tokens, known)
    if isinstance(denoiser, Score):
        return ClampedScore(denoiser, model.process(), tokens, known)
    raise ValueError(f"prompt and suffix with a {type(denoiser).__name__}: {_NO_TOKENS_IN_VECTORS}")


def transform(denoiser: AnyDenoiser, top_p: float = 1.0, temperature: float = 1.0) -> AnyDenoiser:
    """The denoiser with temperature and top-p, where they are not 1; a model without a belief is refused."""
    if temperature != 1:
        denoiser = Temperature(denoiser, temperature)
    return TopP(denoiser, top_p) if top_p != 1 else denoiser


def with_memo(denoiser: AnyDenoiser) -> AnyDenoiser:
    """The denoiser with a memo, if its belief depends on the tokens alone: then unchanged sequences cost nothing."""
    return denoiser if getattr(unwrap(denoiser), "depends_on_alpha", True) else Memoized(denoiser)
