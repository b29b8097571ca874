"""What a reproduction tries: the claims of the paper, each as comparisons that code can decide, and on which data.

    molecules   QM9 SMILES: quality is the share of valid ones, decided by RDKit; diversity is novelty
    prose       novels: quality is Gen PPL under a language model, diversity is the entropy of a sample's tokens

Models are compared at equal diversity. A domain without one has a quality that falls both when samples are wrong and
when they repeat, such as coverage: there every trained model is compared at its own best temperature.

domains.json holds the domains and the budgets, with the fields of these classes. A model has a key, such as "duo" or
"duo-posterior", under which the claims name it, and one run folder per seed. The keys of the short runs begin with
"short-": the models of Table 1 and of the curriculum's ablation, trained for equally many steps by the changes that
stand under "short"; those of the ablation have the paper's window and schedule, so that only the curriculum differs.
The judge of prose reads about three samples of 64 tokens a second, so there are few settings and few samples; at
temperature 0.5 a draw has as little entropy as a greedy tail at 1. The budget "full" has twice the samples of
molecules: the error of novelty moves a whole curve, and decides how wide an interval is.

Every comparison names its first arm as the better one: that is what is claimed. The rule for a verdict is in
``RULE`` and is the same for all. ``paper`` is the figure that the paper gives, in its own setting (LM1B or OpenWebText,
170 M parameters); "beyond the paper" marks what the paper does not claim.

claims.json holds the claims. Its rows are first, second and the paper's figure: a text, a text for each number of steps
(without one the paper gives none), or nothing, beyond the paper. An arm is a model, or the fields of ``Arm``. A group
of rows is repeated for each of its "steps": "few", "tail_steps" and "many" are those of the domain, "most" is
the largest of "few", and numbers are those among "few". "over" are the steps of several arms, and "{many}" in a title
stands for a number of steps. A group of the kind "rounds" compares each round of a distillation with the one before.
Likelihoods and variances are those of the short runs of the models, where there are such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Literal

from duality.papers.duo import Entry, read_entries
from duality.protocols import Tail
from duality.registry import suggestion
from duality.runs.requests import RoundChanges
from duality.training import Precision

RULE = (
    "The 95 % interval of the difference decides: it excludes zero in the claimed direction (shows), it excludes zero "
    "in the other direction (contradicts), or it contains zero (undecided at this budget). Samples are compared at "
    "equal diversity: quality is interpolated along each model's curve over temperatures, at the diversity that the "
    "second model has at temperature 1, moved into the range that both curves have. Where no diversity is named, each "
    "trained model is taken at its own best temperature, chosen by other samples than those that are counted. "
    "Intervals are by bootstrap over seeds and samples. As good as another means: the interval of the difference "
    "contains zero, or is on the better side of it."
)


# --- data and models


@dataclass(frozen=True)
class Training:
    """How a model is made: by a recipe with changes as in ``--set``, or by distilling the model ``base`` (its key)."""

    recipe: str = ""
    changes: tuple[str, ...] = ()
    base: str = ""
    method: str = ""
    rounds: RoundChanges = RoundChanges()


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Data, models, measures, and how much is measured. ``better`` says in which direction the quality is better.

    Models are compared where their ``diversity`` is equal, or, if that is "", each at its best temperature.
    ``unit`` is what a difference of quality is counted in, ``scale`` how many of them are 1. ``bases``, ``students``
    and ``short`` are how many seeds there are: of bases, of students and of the short runs that compare likelihoods.
    ``num`` samples are written by each seed of a model in each setting, ``few_num`` if it has at most 8 steps; a model
    with one seed writes twice as many. ``few``, ``tail_steps``, at which tails are compared, and ``many`` are numbers
    of steps; ``sequences`` are held out, and ``draws`` those of a gradient. ``without`` names claims that are not tried
    here.
    """

    name: str
    title: str
    quality: str
    better: Literal["higher", "lower"]
    unit: str
    scale: float
    diversity: str
    scorer: str | None
    judge: str | None
    models: Mapping[str, Training]
    length: int
    bases: int
    students: int
    short: int
    num: int = 256
    few_num: int = 512
    temperatures: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5)
    few: tuple[int, ...] = (2, 4, 8, 16, 32)
    tail_steps: tuple[int, ...] = (4, 8)
    many: int = 128
    sequences: int = 512
    draws: int = 120
    precision: Precision = "auto"
    without: tuple[str, ...] = ()

    def seeds(self, key: str) -> range:
        """The seeds of a model, from 1."""
        usual = self.short if key.startswith("short-") else self.bases
        return range(1, (self.students if self.models[key].base else usual) + 1)

    def base_seed(self, seed: int) -> int:
        """The seed of the base that a student with ``seed`` is distilled from."""
        return (seed - 1) % self.bases + 1

    def read_claims(self, names: tuple[str, ...] = ()) -> list[Claim]:
        """The claims of these names that are tried here; all if there are none."""
        entries = read_entries("reproduce/claims.json")
        tried = {entry["name"]: entry for entry in entries if entry["name"] not in self.without}
        for name in names:
            if name not in (*tried, *self.without):
                raise ValueError(f"no claim {name!r}: {suggestion(name, tried)}")
        found = []
        for entry in (tried[name] for name in names or tried if name in tried):
            title = entry["title"].format(many=self.many, most=max(self.few))
            comparisons = tuple(each for group in entry["comparisons"] for each in _read_group(group, self))
            found.append(Claim(entry["name"], title, entry["where"], comparisons))
        return found


# --- claims


@dataclass(frozen=True)
class Arm:
    """A side of a comparison: a model by its key, and what of it.

    Of samples it is the number of steps (None: the model's own), how the steps are taken, and a round of a distillation
    (None: the last); of gradients the ``objective``, named as in `duality variance`.
    """

    model: str
    steps: int | None = None
    tail: Tail = "ancestral"
    sampler: str = "own"
    round: int | None = None
    objective: str = ""

    @property
    def words(self) -> str:
        """The arm in words."""
        steps = "one step per token" if self.steps is None else f"{self.steps} steps"
        tail = "" if self.tail == "ancestral" else f", {self.tail} tail"
        sampler = "" if self.sampler == "own" else f", {self.sampler}"
        return f"{self.model}{'' if self.round is None else f' round {self.round}'}, {steps}{sampler}{tail}"


@dataclass(frozen=True)
class Comparison:
    """One of ``arms`` is better than ``other``, as ``kind`` says; ``statistic`` belongs to variances.

    likelihoods     the model has fewer nats per token of held-out text
    variances       the gradients of the objective vary less at the same weights: all weights, top 100 or loss
    better          the samples are better at equal diversity
    speed           a sample takes fewer seconds
    equal quality   a sample of the first of the arms that is as good as the other takes fewer seconds
    """

    kind: Literal["likelihoods", "variances", "better", "speed", "equal quality"]
    arms: tuple[Arm, ...]
    other: Arm
    paper: str
    statistic: str = ""

    @property
    def statement(self) -> str:
        """The claim in words."""
        first, other = self.arms[0], self.other
        one, two = (arm.model.removeprefix("short-") for arm in (first, other))
        return {
            "likelihoods": f"{one} has a lower PPL than {two}",
            "variances": f"variance, {self.statistic}: {first.objective} has less than {other.objective}",
            "better": f"{first.words} beats {other.words}",
            "speed": f"{first.words} writes faster than {other.words}",
            "equal quality": f"{one} with as many steps as it needs to be as good writes faster than {other.words}",
        }[self.kind]


@dataclass(frozen=True)
class Claim:
    """A claim: a short name for the command line, a title, where it is in the paper, and its comparisons."""

    name: str
    title: str
    where: str
    comparisons: tuple[Comparison, ...]


# --- what is in the files


def read_domains(
    budget: str,
    seeds: int | None = None,
    names: tuple[str, ...] = (),
    base_seeds: int | None = None,
    judge: str | None = None,
    precision: Precision = "auto",
) -> tuple[Domain, ...]:
    """The domains of a budget; ``seeds`` replaces all its numbers of seeds, ``base_seeds`` that of sampled models.

    ``names`` are the domains that are wanted (none: all); ``judge`` is another one than the default. ``precision`` is
    what models are trained and used in.
    """
    for field, value in (("seeds", seeds), ("base_seeds", base_seeds)):
        if value is not None and value < 1:
            raise ValueError(f"{field} is {value}: it must be at least 1")
    content = read_entries("reproduce/domains.json")
    if budget not in content["budgets"]:
        raise ValueError(f"no budget {budget!r}: choose quick (molecules) or full (molecules and prose)")
    known, chosen = content["budgets"][budget], list[Domain]()
    for name in names or known:
        if name not in known:
            raise ValueError(
                f"no domain {name!r} in the budget {budget}: it has {', '.join(known)}; full has prose too"
            )
        entry = {**content["domains"][name], **known[name]}
        short, usual, numbers = (entry.pop(each, ()) for each in ("short", "judge", "seeds"))
        models = {
            key: Training(**{**model, "rounds": RoundChanges(**model.pop("rounds", {}))})
            for key, model in entry.pop("models").items()
        }
        for key in (key for key in models if key.startswith("short-")):
            models[key] = replace(models[key], changes=(*short, *models[key].changes))
        bases, students, runs = numbers if seeds is None else (seeds,) * 3
        entry |= {"bases": base_seeds or bases, "students": students, "short": runs}
        chosen.append(Domain(name=name, models=models, judge=usual and (judge or usual), precision=precision, **entry))
    if judge is not None and all(domain.judge is None for domain in chosen):
        raise ValueError(f"--judge {judge}: no samples are judged here; it is for prose, which --budget full has")
    return tuple(chosen)


def _read_group(group: Entry, domain: Domain) -> Iterator[Comparison]:
    """The comparisons of a group of rows, for each of its numbers of steps."""
    kind = group["kind"]

    def short(key: str, objective: str = "") -> Arm:
        """The short run of a model, or the model's own if there is none."""
        return Arm(f"short-{key}" if f"short-{key}" in domain.models else key, objective=objective)

    for steps, (first, second, *printed) in product(_list_steps(group.get("steps", "any"), domain), group["rows"]):
        figures = printed[0] if printed else "beyond the paper"
        if kind == "likelihoods":
            one, other = short(first), short(second)
            if {one.model, other.model} <= set(domain.models):
                yield Comparison(kind, (one,), other, figures)
        elif kind == "variances":
            one, other = (short(group["model"], objective) for objective in (first, second))
            yield Comparison(kind, (one,), other, figures, group["statistic"])
        elif kind == "rounds":
            rounds = [Arm(first, steps, round=number) for number in range(1, domain.models[first].rounds.rounds or 0)]
            for number, (before, after) in enumerate(pairwise([Arm(second, steps), *rounds, Arm(first, steps)]), 1):
                yield Comparison("better", (after,), before, _figure_at(number, figures))
        else:
            over = _list_steps(group["over"], domain) if "over" in group else (steps,)
            arms = tuple(_read_arm(first, each, domain) for each in over)
            yield Comparison(kind, arms, _read_arm(second, steps, domain), _figure_at(steps, figures))


def _figure_at(number: int, figures: str | Entry) -> str:
    """The paper's figure at a number of steps or in a round."""
    return figures if isinstance(figures, str) else str(figures.get(str(number), "not given"))


def _list_steps(which: str | tuple[int, ...], domain: Domain) -> tuple[int, ...]:
    """The numbers of steps that a group has."""
    few, many = domain.few, (domain.many,)
    if not isinstance(which, str):
        return tuple(each for each in which if each in few)
    named = {"few": few, "many": many, "few and many": few + many, "most": (max(few),), "any": (0,)}
    return {**named, "tail_steps": domain.tail_steps}[which]


def _read_arm(entry: str | Entry, steps: int, domain: Domain) -> Arm:
    """An arm of claims.json; "many" stands for a number of steps."""
    fields = {"steps": steps, **({"model": entry} if isinstance(entry, str) else entry)}
    return Arm(**{**fields, "steps": domain.many if fields["steps"] == "many" else fields["steps"]})
