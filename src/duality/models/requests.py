"""What a user asks of a model, as one object for each question: the API, the command line and the studio share them.

    SampleRequest    write text: prompt, suffix, length
    FillRequest      fill in the blanks of a text
    ScoreRequest     how a likelihood is measured

``SampleOptions`` and ``ScoreOptions`` are the same fields as keywords, for ``Model.sample`` and ``Model.surprisal``.
This module imports neither torch nor a network: the command line reads its fields before it knows what it will run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from duality.samplers import GRIDS, SAMPLERS

Tail = Literal["ancestral", "greedy", "posterior"]  # that of protocols.py, without torch
if TYPE_CHECKING:  # a type checker knows no registries
    SamplerName = str
    GridName = str
else:
    SamplerName, GridName = Literal[("own", *SAMPLERS)], Literal[tuple(GRIDS)]

_KINDS: dict[object, tuple[type[object], str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": (str, "a text"),
    **dict.fromkeys(("Tail", "SamplerName", "GridName"), (str, "a text")),
    "Mapping[int, int]": (Mapping, "a dictionary of places and tokens"),
}


def check_type(name: str, value: object, kind: object) -> None:
    """Refuse the value of an argument that is not of its kind, which is written as an annotation.

    >>> check_type("steps", 8.5, "int | None")
    Traceback (most recent call last):
    TypeError: steps is 8.5: it must be a whole number, or None
    """
    base, _, optional = str(kind).partition(" | ")
    if base not in _KINDS or (value is None and optional):
        return  # a field that the command line reads has a kind of its own
    allowed, words = _KINDS[base]
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise TypeError(f"{name} is {value!r:.80}: it must be {words}{', or None' if optional else ''}")
    for entry in value.items() if isinstance(value, Mapping) else ():
        for part, number in zip(("a place", "a token"), entry):
            check_type(f"{part} of {name}", number, "int")


def list_texts(name: str, value: object) -> list[str]:
    """One text or several as a list; anything else is refused."""
    rows = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    for row in rows:
        check_type(name, value if isinstance(value, bytes) else row, "str")
    return cast(list[str], rows)


class _Checked:
    """A request whose fields are of the kinds that they are annotated with."""

    def __post_init__(self) -> None:
        """Refuse a field of another kind; a number of any library becomes Python's, which does not overflow."""
        for each in fields(self):  # type: ignore[arg-type]  # a request is a dataclass
            check_type(each.name, value := getattr(self, each.name), each.type)
            kind = {"int": int, "float": float}.get(str(each.type).partition(" | ")[0])
            if kind is not None and value is not None:
                object.__setattr__(self, each.name, kind(value))


@dataclass(frozen=True)
class SampleChoices(_Checked):
    """How samples are drawn, whatever they are drawn for."""

    num: int = 1
    """how many samples."""
    steps: int | None = None
    """network calls for each sample; if not given, the recipe's, or 32, one per token (autoregressive), two (Gibbs)."""
    sampler: SamplerName | None = None
    """the model's own, or another one of its noise; a psi sampler returns some tokens to noise and can correct them."""
    eta: float | None = None
    """how much a psi sampler returns to noise: 0 is ancestral; if not given, 0.01 (psi-constant, psi-loop) or 0.05."""
    grid: GridName | None = None
    """where the steps are: linear (equal times), cosine (small steps in much noise), loop (for psi-loop only)."""
    tail: Tail | None = None
    """the last step draws (ancestral) or takes the most likely tokens (greedy, or posterior: given the noisy token); if
    not given, the recipe's."""
    top_p: float = 1.0
    """draw from the fewest tokens that hold this share of the belief; 1 is all of it."""
    temperature: float | None = None
    """below 1 sharpens the belief, above 1 flattens it; if not given, the recipe's."""
    label: str | None = None
    """write in this class; the model must have been trained with labels."""
    guidance: float | None = None
    """how much the class counts: 1 is the conditional model, more goes beyond it."""
    seed: int = 0
    """the same seed gives the same samples."""
    batch_size: int = 16
    """samples at a time; the result does not depend on it."""


@dataclass(frozen=True)
class SampleRequest(SampleChoices):
    """Samples of a length that begin with a prompt and end with a suffix."""

    length: int | None = None
    """tokens of a sample; the length it was trained on if not given."""
    prompt: str = ""
    """text that every sample begins with."""
    suffix: str = ""
    """text that every sample ends with: the model fills in what is between."""
    keep: Mapping[int, int] = field(default_factory=dict)
    """tokens that stay at their positions."""


@dataclass(frozen=True)
class FillRequest(SampleChoices):
    """Samples in which the blanks of a text are filled in."""

    text: str = ""
    """the text, with a blank wherever the model writes."""
    blank: str = "___"
    """how a blank is written in the text."""
    tokens_per_blank: int | None = None
    """tokens that a blank becomes; as many as a word of the text has on average if not given."""


@dataclass(frozen=True)
class ScoreRequest(_Checked):
    """How the likelihood of texts is measured."""

    num_draws: int = 8
    """draws of time and noise; more make the error smaller."""
    seed: int = 0
    """the same seed gives the same draws."""
    batch_size: int = 32
    """windows at a time; the result does not depend on it."""
    label: str | None = None
    """the class that a class-conditional model is given."""


class ChoiceOptions(TypedDict, total=False):
    """The fields of ``SampleChoices`` but ``num``, as keywords."""

    steps: int | None
    sampler: SamplerName | None
    eta: float | None
    grid: GridName | None
    tail: Tail | None
    top_p: float
    temperature: float | None
    label: str | None
    guidance: float | None
    seed: int
    batch_size: int


class SampleOptions(ChoiceOptions, total=False):
    """The fields of ``SampleRequest`` but ``num``, as keywords."""

    length: int | None
    prompt: str
    suffix: str
    keep: Mapping[int, int]


class ScoreOptions(TypedDict, total=False):
    """The fields of ``ScoreRequest`` as keywords."""

    num_draws: int
    seed: int
    batch_size: int
    label: str | None
