"""What a user asks of a sweep over runs, as one object for the library and the command line.

    SweepRequest(steps=(8, 32), temperature=(0.5, 1.0))      --steps 8,32 --temperature 0.5,1.0

The first five fields may have several values, as a sequence or as a text with commas between them. A field's docstring
is its help text. What must hold: the fields and their help are known without torch; a request that no model could
answer is refused when it is made.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from duality.registry import suggestion
from duality.samplers import SAMPLERS

SAMPLER_NAMES = ("own", *SAMPLERS)
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class SweepRequest:
    """How the samples of runs are made: in every combination of steps, samplers, tails, temperatures and rounds."""

    steps: str | Sequence[int | None] = "8,16,32,64"
    """network calls for each sample, several with commas; own is the model's own number, such as one per token for an
    autoregressive model."""
    sampler: str | Sequence[str] = "own"
    """the model's own, or others of its noise, with commas."""
    tail: str | Sequence[str] = "ancestral"
    """the last step draws (ancestral), takes the most likely tokens (greedy), or those given the noisy token too
    (posterior); several with commas."""
    temperature: str | Sequence[float] = "1.0"
    """below 1 sharpens the belief, above 1 flattens it; several with commas give the frontier of quality against
    diversity, on which models are compared at equal diversity."""
    rounds: str | Sequence[int] = "last"
    """of distilled runs the last round, all, or some, with commas; 0 is the model before distillation."""
    num: int = 64
    """samples of each kind."""
    length: int | None = None
    """tokens of a sample; the length the run was trained on if not given."""
    eta: float | None = None
    """the strength of a psi sampler."""
    grid: str | None = None
    """where the steps are; the one that suits the sampler if not given."""
    top_p: float = 1.0
    """draw from the fewest tokens that hold this share of the belief."""
    seed: int = 0
    """the same seed gives the same samples."""
    checkpoint: int | None = None
    """the weights at this training step instead of the newest; every run must have kept that checkpoint."""

    def __post_init__(self) -> None:
        samplers = list_values("--sampler", "names", self.sampler, str)
        for name in samplers:
            if name not in SAMPLER_NAMES:
                raise ValueError(f"no sampler {name!r}: {suggestion(name, SAMPLER_NAMES)}")
        if self.eta is not None and not any(map(_has_eta, samplers)):
            raise ValueError(
                f"eta is {self.eta}, and no sampler of {', '.join(samplers)} has one: leave it out, or choose a psi "
                "sampler"
            )
        cases = self.settings(own_steps=1)
        if not cases or not all(0 < case["temperature"] < math.inf for case in cases):
            raise ValueError(f"temperatures are {self.temperature}: give at least one, each above 0")
        self.rounds_of([0])

    def settings(self, own_steps: int) -> list[dict[str, Any]]:
        """What each case of a model has of the request, by name; ``own_steps`` is the model's own number of steps."""
        steps = list_values(
            "--steps", "whole numbers", self.steps, lambda word: None if word == "own" else _whole(word)
        )
        values = product(
            list_values("--sampler", "names", self.sampler, str),
            list_values("--tail", "names", self.tail, str),
            (own_steps if each is None else each for each in steps),
            list_values("--temperature", "numbers", self.temperature, float),
        )
        shared = {name: getattr(self, name) for name in ("num", "seed", "grid", "top_p", "checkpoint")}
        cases = [shared | dict(zip(("sampler", "tail", "steps", "temperature"), each)) for each in values]
        return [case | {"eta": self.eta if _has_eta(case["sampler"]) else None} for case in cases]

    def rounds_of(self, saved: Sequence[int]) -> Sequence[int | None]:
        """The rounds to measure of a run with these ``saved`` ones; None is the newest weights."""
        if self.rounds == "all":
            return saved or [None]
        chosen = () if self.rounds == "last" else list_values("--rounds", "whole numbers", self.rounds, _whole)
        return chosen if saved and chosen else [None]


def _has_eta(sampler: str) -> bool:
    """Whether a sampler has the setting ``eta``."""
    return sampler != "own" and "eta" in inspect.signature(SAMPLERS[sampler]).parameters


def list_values(flag: str, kind: str, given: str | Sequence[_Value], read: Callable[[str], _Value]) -> Sequence[_Value]:
    """The values that are given, as a sequence or as words between commas; a word that is none is refused."""
    if not isinstance(given, str):
        return given
    words = [word.strip() for word in given.split(",") if word.strip()]
    if not words:
        raise ValueError(f"{given!r} names nothing: write one or several, with commas between")
    found = []
    for word in words:
        try:
            found.append(read(word))
        except ValueError:
            raise ValueError(f"{flag} {word!r}: write {kind}, with commas between") from None
    return found


def _whole(word: str) -> int:
    """A word as a whole number."""
    if not word.isdecimal():
        raise ValueError
    return int(word)
