"""The claims of the paper, each as comparisons that code can decide.

    Likelihoods   the first model has fewer nats per token of held-out text than the second
    Variances     the gradients of the first objective vary less than those of the second, at the same weights
    Samples       the samples of the first arm are better than those of the second, or take fewer seconds

Every comparison names its first model or arm as the better one: that is what is claimed. The rule for a verdict is in
``RULE`` and is the same for all. ``paper`` is the figure that the paper gives, in its own setting (LM1B or OpenWebText,
170 M parameters); "beyond the paper" marks what the paper does not claim.

claims.json holds the claims. Its rows are first, second and the paper's figure: a text, a text for each number of steps
(without one the paper gives none), or nothing, beyond the paper. An arm is a model, or the fields of ``Arm``. A group
of rows is repeated for each of its "steps": "few", "tail_steps" and "many" are those of the domain's amount, "most" is
the largest of "few", and numbers are those among "few". "over" are the steps of several arms, and "{many}" in a title
stands for a number of steps. A group of the kind "rounds" compares each round of a distillation with the one before.
Likelihoods and variances are those of the short runs of the models, where there are such.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from duality.papers.duo import Entry
from duality.protocols import Tail
from duality.registry import suggestion

if TYPE_CHECKING:
    from duality.papers.duo.reproduce.domains import Amount, Domain

RULE = (
    "The 95 % interval of the difference decides: it excludes zero in the claimed direction (shows), it excludes zero "
    "in the other direction (contradicts), or it contains zero (undecided at this budget). Samples are compared at "
    "equal diversity: quality is interpolated along each model's curve over temperatures, at the diversity that the "
    "second model has at temperature 1, moved into the range that both curves have. Intervals are by bootstrap over "
    "seeds and samples. As good as another means: the interval of the difference contains zero, or is on the better "
    "side of it."
)


@dataclass(frozen=True)
class Arm:
    """Samples of a model: its key, the number of steps (None: its own), and how the steps are taken.

    ``round`` is a round of a distillation; None is the last.
    """

    model: str
    steps: int | None
    tail: Tail = "ancestral"
    sampler: str = "own"
    round: int | None = None

    @property
    def words(self) -> str:
        """The arm in words."""
        steps = "one step per token" if self.steps is None else f"{self.steps} steps"
        tail = "" if self.tail == "ancestral" else f", {self.tail} tail"
        sampler = "" if self.sampler == "own" else f", {self.sampler}"
        return f"{self.model}{'' if self.round is None else f' round {self.round}'}, {steps}{sampler}{tail}"


@dataclass(frozen=True)
class Likelihoods:
    """The first model has fewer nats per token than the second."""

    first: str
    second: str
    paper: str

    @property
    def statement(self) -> str:
        return f"{self.first.removeprefix('short-')} has a lower PPL than {self.second.removeprefix('short-')}"


@dataclass(frozen=True)
class Variances:
    """A variance of the first objective is lower than that of the second, at the weights of ``model``.

    Objectives are named as in `duality variance`; ``statistic`` is what varies: all weights, top 100 or loss.
    """

    model: str
    statistic: str
    first: str
    second: str
    paper: str

    @property
    def statement(self) -> str:
        return f"variance, {self.statistic}: {self.first} has less than {self.second}"


@dataclass(frozen=True)
class Samples:
    """One of ``arms`` is better or faster than ``other``, as ``kind`` says.

    better          its samples are better at equal diversity
    speed           it takes fewer seconds per sample
    equal quality   the first of the arms that is as good as the other takes fewer seconds per sample
    """

    kind: Literal["better", "speed", "equal quality"]
    arms: tuple[Arm, ...]
    other: Arm
    paper: str

    @property
    def statement(self) -> str:
        first, other = self.arms[0], self.other.words
        if self.kind == "equal quality":
            return f"{first.model} with as many steps as it needs to be as good writes faster than {other}"
        return f"{first.words} {'beats' if self.kind == 'better' else 'writes faster than'} {other}"


Comparison = Likelihoods | Variances | Samples


@dataclass(frozen=True)
class Claim:
    """A claim: a short name for the command line, a title, where it is in the paper, and its comparisons."""

    name: str
    title: str
    where: str
    comparisons: tuple[Comparison, ...]

    def arms(self) -> list[Arm]:
        """All arms whose samples are needed."""
        compared = [each for each in self.comparisons if isinstance(each, Samples)]
        return [arm for each in compared for arm in (*each.arms, each.other)]


def read_claims(names: tuple[str, ...], domain: Domain) -> list[Claim]:
    """The claims of these names that are tried on a domain; all if there are none."""
    content = json.loads(Path(__file__).with_name("claims.json").read_text(encoding="utf-8"))
    tried = {entry["name"]: entry for entry in content if entry["name"] not in domain.amount.without}
    for name in names:
        if name not in (*tried, *domain.amount.without):
            raise ValueError(f"no claim {name!r}: {suggestion(name, tried)}")
    found, amount = [], domain.amount
    for entry in (tried[name] for name in names or tried if name in tried):
        title = entry["title"].format(many=amount.many, most=max(amount.few))
        comparisons = tuple(each for group in entry["comparisons"] for each in _read_group(group, domain))
        found.append(Claim(entry["name"], title, entry["where"], comparisons))
    return found


def _read_group(group: Entry, domain: Domain) -> Iterator[Comparison]:
    """The comparisons of a group of rows, for each of its numbers of steps."""
    amount, kind = domain.amount, group["kind"]
    for steps in _list_steps(group.get("steps", "any"), amount):
        for first, second, *printed in group["rows"]:
            figure: str | dict[str, str] = printed[0] if printed else "beyond the paper"
            paper = figure if isinstance(figure, str) else figure.get(str(steps), "not given")
            if kind == "likelihoods":
                pair = _find_short_run(first, domain), _find_short_run(second, domain)
                if set(pair) <= set(domain.models):
                    yield Likelihoods(*pair, paper)
            elif kind == "variances":
                yield Variances(_find_short_run(group["model"], domain), group["statistic"], first, second, paper)
            elif kind == "rounds":
                rounds = [Arm(first, steps, round=number) for number in range(1, domain.rounds_of(first))]
                for number, (before, after) in enumerate(pairwise([Arm(second, steps), *rounds, Arm(first, steps)]), 1):
                    paper = figure if isinstance(figure, str) else figure.get(str(number), "not given")
                    yield Samples("better", (after,), before, paper)
            else:
                over = _list_steps(group["over"], amount) if "over" in group else (steps,)
                arms = tuple(_read_arm(first, each, amount) for each in over)
                yield Samples(kind, arms, _read_arm(second, steps, amount), paper)


def _list_steps(which: str | list[int], amount: Amount) -> tuple[int, ...]:
    """The numbers of steps that a group has."""
    few, many = amount.few, amount.many
    named = {"few": few, "many": (many,), "few and many": (*few, many), "most": (max(few),), "any": (0,)}
    if isinstance(which, str):
        return amount.tail_steps if which == "tail_steps" else named[which]
    return tuple(each for each in which if each in few)


def _find_short_run(model: str, domain: Domain) -> str:
    """The key of the short run of a model, or the model's own if there is none."""
    return f"short-{model}" if f"short-{model}" in domain.models else model


def _read_arm(entry: str | Entry, steps: int, amount: Amount) -> Arm:
    """An arm of claims.json; "many" stands for a number of steps."""
    fields = {"steps": steps, **({"model": entry} if isinstance(entry, str) else entry)}
    return Arm(**{**fields, "steps": amount.many if fields["steps"] == "many" else fields["steps"]})
