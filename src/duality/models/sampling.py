"""Samples of a model: the request of a user, the known tokens around it, and the sample that comes out.

A model writes rows of a fixed number of tokens. A document that is shorter ends with an end-of-text token; what follows
it is padding or, for a model of wrapped text, other documents. The text of a sample is what stands before the first
end-of-text. Known tokens are never cut off: with a suffix, or with text behind a blank, the end is looked for after the
last known token. What must hold: the tokens of a sample are the whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duality.models.shaping import Known, Wrap, transform, unchanged, with_known, with_label, with_memo
from duality.protocols import Tail
from duality.recipes.recipe import Generation
from duality.samplers.choice import grid_named
from duality.samplers.generate import Frame, batches
from duality.tokenizers.tokenizer import text_before_end

if TYPE_CHECKING:
    from duality.models.model import Model

Watch = Callable[[Frame], None]
Each = Callable[["Sample"], None]


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

    def row(self, trained_steps: int, full: bool = False) -> dict[str, str | int | float | list[int]]:
        """The sample as a JSON object, with the step of the checkpoint that wrote it; ``full`` adds the full text."""
        made: dict[str, str | int | float | list[int]] = {"index": self.index, "seed": self.seed, "steps": self.steps}
        made |= {"tail": self.tail, "temperature": self.temperature}
        made |= {"trained_steps": trained_steps, "text": self.text}
        return made | ({"full_text": self.full_text} if full else {}) | {"tokens": self.tokens}


@dataclass(frozen=True)
class Request:
    """The choices that ``Model.sample`` and ``Model.fill`` share."""

    num: int
    how: Generation
    eta: float | None
    grid: str | None
    top_p: float
    label: str | None
    guidance: float | None
    seed: int
    batch_size: int


def chosen(
    standard: Generation, steps: int | None, tail: Tail | None, sampler: str | None, temperature: float | None
) -> Generation:
    """How a model is sampled: as was chosen, and where nothing was (None) as its recipe says.

    Another sampler than the recipe's has its own number of steps.

    >>> chosen(Generation(steps=8, tail="posterior"), None, None, None, 0.8)
    Generation(steps=8, sampler='own', tail='posterior', temperature=0.8)
    >>> chosen(Generation(steps=8), None, None, "psi-loop", None).steps is None
    True
    """
    own = sampler is None or sampler == standard.sampler
    return Generation(
        steps=standard.steps if steps is None and own else steps,
        sampler=standard.sampler if sampler is None else sampler,
        tail=standard.tail if tail is None else tail,
        temperature=standard.temperature if temperature is None else temperature,
    )


def write(
    model: Model,
    request: Request,
    known: Known,
    watch: Watch | None,
    each: Each | None,
    wrap: Wrap = unchanged,
) -> list[Sample]:
    """The samples of a request around known tokens; ``each`` gets every one as soon as its batch is written."""
    process = model.recipe.method.process(model.tokenizer.vocab_size)
    how = request.how
    sampler = model.named_sampler(how.sampler, request.eta)
    steps = sampler.steps(len(known)) if how.steps is None else how.steps
    denoiser = with_label(model.denoiser, request.label, request.guidance, model.label_names, model.device)
    denoiser = with_known(transform(denoiser, request.top_p, how.temperature), known.to(model.device), process)
    made = batches(
        wrap(with_memo(denoiser)),
        model.schedule,
        sampler,
        steps=steps,
        num=request.num,
        length=len(known),
        seed=request.seed,
        tail=how.tail,
        grid=grid_named(request.grid, how.sampler),
        batch_size=request.batch_size,
        device=model.device,
        watch=watch,
    )
    samples: list[Sample] = []
    for row in (row for tokens in made for row in tokens.tolist()):
        text, full_text = text_before_end(model.tokenizer, row, known.end), model.tokenizer.decode(row)
        sample = Sample(text, full_text, row, len(samples), request.seed, steps, how.tail, how.temperature)
        samples.append(sample)
        if each is not None:
            each(sample)
    return samples
