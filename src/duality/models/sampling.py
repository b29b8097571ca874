"""Samples of a model: the request of a user, the known tokens around it, and the sample that comes out.

A model writes rows of a fixed number of tokens. A document that is shorter ends with an end-of-text token; what follows
it is padding or, for a model of wrapped text, other documents. The text of a sample is what stands before the first
end-of-text. Known tokens are never cut off: with a suffix, or with text behind a blank, the end is looked for after the
last known token. What must hold: the tokens of a sample are the whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from duality.models.limits import check_sampling
from duality.models.requests import FillRequest, SampleChoices, SampleRequest
from duality.models.shaping import (
    Known,
    Wrap,
    check_can_infill,
    known_ends,
    known_parts,
    num_tokens_of,
    parts_around_blanks,
    transform,
    unchanged,
    with_known,
    with_label,
    with_memo,
)
from duality.protocols import Sampler, Schedule, Tail
from duality.recipes.recipe import Generation, Recipe
from duality.samplers.choice import grid_named
from duality.samplers.generate import Frame, batches
from duality.tokenizers.tokenizer import Tokenizer, text_before_end

Watch = Callable[[Frame], None]
Each = Callable[["Sample"], None]


class SampledModel(Protocol):
    """What of a ``Model`` is used to write samples."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def denoiser(self) -> nn.Module: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def label_names(self) -> tuple[str, ...]: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def length(self) -> int: ...
    @property
    def schedule(self) -> Schedule: ...
    def named_sampler(self, name: str = "own", eta: float | None = None) -> Sampler: ...


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


def resolve_generation(choices: SampleChoices, standard: Generation) -> Generation:
    """How a model is sampled: as was chosen, and where nothing was (None) as its recipe says.

    Another sampler than the recipe's has its own number of steps.

    >>> resolve_generation(SampleChoices(temperature=0.8), Generation(steps=8, tail="posterior"))
    Generation(steps=8, sampler='own', tail='posterior', temperature=0.8)
    >>> resolve_generation(SampleChoices(sampler="psi-loop"), Generation(steps=8)).steps is None
    True
    """
    own = choices.sampler is None or choices.sampler == standard.sampler
    return Generation(
        steps=standard.steps if choices.steps is None and own else choices.steps,
        sampler=standard.sampler if choices.sampler is None else choices.sampler,
        tail=standard.tail if choices.tail is None else choices.tail,
        temperature=standard.temperature if choices.temperature is None else choices.temperature,
    )


def known_tokens(model: SampledModel, request: SampleRequest | FillRequest) -> Known:
    """The tokens of a request that are known; what the model cannot do, or the machine cannot hold, is refused."""
    tokenizer, batch = model.tokenizer, min(request.num, request.batch_size)
    if isinstance(request, FillRequest):
        check_can_infill(model.denoiser, "fill")
        parts = parts_around_blanks(tokenizer, request.text, request.blank, request.tokens_per_blank)
        check_sampling(model.denoiser, batch, num_tokens_of(parts), model.device)  # before they are allocated
        return known_parts(parts)
    length = model.length if request.length is None else request.length
    check_sampling(model.denoiser, batch, length, model.device)
    known = known_ends(tokenizer, length, request.prompt, request.suffix).keeping(request.keep, tokenizer.vocab_size)
    if request.suffix or request.keep:
        check_can_infill(model.denoiser, "suffix" if request.suffix else "keep")
    return known


def write_around(
    model: SampledModel,
    choices: SampleChoices,
    known: Known,
    watch: Watch | None = None,
    each: Each | None = None,
    wrap: Wrap = unchanged,
) -> list[Sample]:
    """The samples around known tokens; ``each`` gets every one as soon as its batch is written."""
    process = model.recipe.method.process(model.tokenizer.vocab_size)
    how = resolve_generation(choices, model.recipe.generation)
    sampler = model.named_sampler(how.sampler, choices.eta)
    steps = sampler.steps(len(known)) if how.steps is None else how.steps
    denoiser = with_label(model.denoiser, choices.label, choices.guidance, model.label_names, model.device)
    denoiser = with_known(transform(denoiser, choices.top_p, how.temperature), known.to(model.device), process)
    made = batches(
        wrap(with_memo(denoiser)),
        model.schedule,
        sampler,
        steps=steps,
        num=choices.num,
        length=len(known),
        seed=choices.seed,
        tail=how.tail,
        grid=grid_named(choices.grid, how.sampler),
        batch_size=choices.batch_size,
        device=model.device,
        watch=watch,
    )
    samples: list[Sample] = []
    for row in (row for tokens in made for row in tokens.tolist()):
        text, full_text = text_before_end(model.tokenizer, row, known.end), model.tokenizer.decode(row)
        sample = Sample(text, full_text, row, len(samples), choices.seed, steps, how.tail, how.temperature)
        samples.append(sample)
        if each is not None:
            each(sample)
    return samples
