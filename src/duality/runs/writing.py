"""Samples of a model: the request of a user, the known tokens around it, and the sample that comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duality.protocols import Tail
from duality.runs.shaping import Known, transform, with_known, with_label
from duality.samplers.choice import grid_named
from duality.samplers.generate import Frame

if TYPE_CHECKING:
    from duality.runs.model import Model

Watch = Callable[[Frame], None]


@dataclass(frozen=True)
class Sample:
    """A sample as text and as tokens, and how it was made: number ``index`` of ``seed``, in ``steps`` network calls.

    >>> Sample("A fox.", [65, 32, 102, 111, 120, 46], index=0, seed=0, steps=8, tail="greedy").text
    'A fox.'
    """

    text: str
    tokens: list[int]
    index: int
    seed: int
    steps: int
    tail: Tail

    def row(self, trained_steps: int) -> dict[str, str | int | list[int]]:
        """The sample as a JSON object, with the step of the checkpoint that wrote it."""
        made: dict[str, str | int | list[int]] = {"index": self.index, "seed": self.seed, "steps": self.steps}
        return made | {"tail": self.tail, "trained_steps": trained_steps, "text": self.text, "tokens": self.tokens}


@dataclass(frozen=True)
class Request:
    """The choices that ``Model.sample`` and ``Model.fill`` share."""

    num: int
    steps: int | None
    tail: Tail
    sampler: str
    eta: float | None
    grid: str | None
    top_p: float
    temperature: float
    label: str | None
    guidance: float | None
    seed: int
    batch_size: int


def write(model: Model, request: Request, known: Known, watch: Watch | None) -> list[Sample]:
    """The samples of a request around known tokens."""
    process = model.recipe.method.process(model.tokenizer.vocab_size)
    sampler = model.named_sampler(request.sampler, request.eta)
    steps = sampler.steps(len(known)) if request.steps is None else request.steps
    denoiser = with_label(model.denoiser, request.label, request.guidance, model.label_names, model.device)
    denoiser = with_known(transform(denoiser, request.top_p, request.temperature), known.to(model.device), process)
    tokens = model.generate(
        lambda _: denoiser,
        sampler,
        steps,
        num=request.num,
        length=len(known),
        seed=request.seed,
        tail=request.tail,
        grid=grid_named(request.grid, request.sampler),
        batch_size=request.batch_size,
        watch=watch,
    )
    return [
        Sample(model.tokenizer.decode(row), row, index, request.seed, steps, request.tail)
        for index, row in enumerate(tokens.tolist())
    ]
