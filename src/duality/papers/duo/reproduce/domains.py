"""Domains and budgets: on what data the claims are tried, how quality and diversity are measured there, and how much.

    molecules   QM9 SMILES: quality is the share of valid ones, decided by RDKit; diversity is novelty
    prose       novels: quality is Gen PPL under a language model, diversity is the entropy of a sample's tokens

``Amount`` says how many seeds, steps, temperatures and samples. The budget ``quick`` is molecules only; ``full`` has
more seeds, and prose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from duality.papers.duo.reproduce.models import Base, Models, Seeds, Student
from duality.training import Compare, TeacherCopy
from duality.training.round_changes import RoundChanges

BudgetName = Literal["quick", "full"]
CHEAP = 8  # steps: a sample costs little, and more of them can be written


@dataclass(frozen=True)
class Amount:
    """How much is measured: seeds, samples, temperatures, numbers of steps, held-out sequences, draws of a gradient.

    ``num`` samples are written by each seed of a model in each setting, ``few_num`` if it has at most 8 steps; a model
    with one seed writes twice as many. ``tail_steps`` are the numbers of steps at which tails are compared. ``without``
    names claims that are not tried here.
    """

    seeds: Seeds
    num: int = 256
    few_num: int = 512
    temperatures: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5)
    few: tuple[int, ...] = (2, 4, 8, 16, 32)
    tail_steps: tuple[int, ...] = (4, 8)
    many: int = 128
    sequences: int = 512
    draws: int = 120
    without: tuple[str, ...] = ()

    def samples(self, steps: int, seeds: int) -> int:
        """How many samples one seed of a model with so many seeds writes in so many steps."""
        return (self.few_num if steps <= CHEAP else self.num) * (2 if seeds == 1 else 1)


@dataclass(frozen=True)
class Domain:
    """Data, measures and models. ``better`` says in which direction the quality is better.

    ``unit`` is what a difference of quality is counted in, ``scale`` how many of them are 1.
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
    models: Models
    rounds: int
    length: int
    amount: Amount

    def seeds(self, key: str) -> range:
        """The seeds of a model."""
        return self.amount.seeds.of(key, self.models)


@dataclass(frozen=True)
class Budget:
    """The domains of a reproduction."""

    name: BudgetName
    domains: tuple[Domain, ...]


def students(base: str, absorbing: str, rounds: int, round_steps: int, first_delta: float) -> dict[str, Student]:
    """DCD as printed, with the posterior comparison and with the average as teacher; SDTT of the absorbing base."""

    def dcd(compare: Compare, teacher: TeacherCopy = "weights") -> Student:
        changes = RoundChanges(
            rounds=rounds, round_steps=round_steps, delta=first_delta, compare=compare, teacher=teacher
        )
        return Student(base, "dcd", changes)

    return {
        f"{base}-output": dcd("output"),
        f"{base}-posterior": dcd("posterior"),
        f"{base}-ema": dcd("output", "ema"),
        f"{absorbing}-sdtt": Student(
            absorbing, "sdtt", RoundChanges(rounds=rounds, round_steps=round_steps, delta=first_delta / 2)
        ),
    }


# Models of Table 1 and of the curriculum's ablation, trained for equally many steps: the fields of duo-molecules or
# duo-laptop with another method.
SHORT_METHODS = {
    "ar": "ar",
    "mdlm": "mdlm",
    "duo": "duo",
    "udlm": "udlm",
    "sedd-absorb": "sedd-absorb",
    "sedd-uniform": "sedd-uniform",
    "d3pm-absorb": "d3pm-absorb",
    "d3pm-uniform": "d3pm-uniform",
}
CURRICULA = {
    "duo-curriculum": ("method.curriculum=0.5", "method.tau=0.001"),
    "duo-window": ("method.curriculum=0.5", "method.tau=0"),
    "duo-plain": ("method.curriculum=0",),
}


def short_runs(family: str, steps: int) -> dict[str, Base]:
    """The short runs of a family of recipes, whose names end with the family's."""
    length = (f"training.steps={steps}", "training.eval_every=0", f"training.warmup={min(100, steps // 5)}")
    runs = {f"short-{key}": Base(f"{name}-{family}", length) for key, name in SHORT_METHODS.items()}
    # the paper's window and its schedule, so that only the curriculum differs
    paper = ("method.alpha_max=0.95", "method.gaussian_schedule=LinearVariance", "method.training_schedule=LogLinear")
    for key, changes in CURRICULA.items():
        runs[f"short-{key}"] = Base(f"duo-{family}", (*length, *paper, *changes))
    return runs


def molecules(amount: Amount, short: int = 250, rounds: int = 4, round_steps: int = 150) -> Domain:
    """QM9."""
    bases = {"ar": Base("ar-molecules"), "mdlm": Base("mdlm-molecules"), "duo": Base("duo-molecules")}
    return Domain(
        name="molecules",
        title="QM9 molecules (SMILES)",
        quality="validity",
        better="higher",
        unit="points of validity",
        scale=100.0,
        diversity="novelty",
        scorer="molecules",
        judge=None,
        models={**bases, **students("duo", "mdlm", rounds, round_steps, 1 / 64), **short_runs("molecules", short)},
        rounds=rounds,
        length=24,
        amount=amount,
    )


def prose(seeds: Seeds, rounds: int = 4, round_steps: int = 200) -> Domain:
    """Novels. The judge reads about three samples of 64 tokens a second, so there are few settings and few samples."""
    bases = {"ar": Base("ar-laptop"), "mdlm": Base("mdlm-laptop"), "duo": Base("duo-laptop")}
    return Domain(
        name="prose",
        title="English novels (BPE, K = 2048)",
        quality="gen_ppl",
        better="lower",
        unit="log Gen PPL",
        scale=1.0,
        diversity="entropy",
        scorer=None,
        judge="smollm2",
        models={**bases, **students("duo", "mdlm", rounds, round_steps, 1 / 64)},
        rounds=rounds,
        length=64,
        amount=Amount(
            seeds,
            num=48,
            few_num=48,
            temperatures=(0.5, 0.7, 0.85, 1.0),  # at 0.5 a draw has as little entropy as a greedy tail at 1
            few=(4, 8, 32),
            tail_steps=(8,),
            without=("curriculum", "variance", "rounds", "teacher", "psi"),
        ),
    )


def budget_named(
    name: BudgetName,
    seeds: int | None = None,
    domains: tuple[str, ...] = (),
    base_seeds: int | None = None,
    judge: str | None = None,
) -> Budget:
    """A budget; ``seeds`` replaces all its numbers of seeds, ``base_seeds`` that of the models that are sampled.

    ``domains`` names those wanted (none: all); ``judge`` is another one than the default.
    """
    for field, value in (("seeds", seeds), ("base_seeds", base_seeds)):
        if value is not None and value < 1:
            raise ValueError(f"{field} is {value}: it must be at least 1")

    def number(bases: int, students: int, short: int) -> Seeds:
        chosen = Seeds(bases, students, short) if seeds is None else Seeds(seeds, seeds, seeds)
        return chosen if base_seeds is None else replace(chosen, bases=base_seeds)

    budgets = {
        "quick": Budget("quick", (molecules(Amount(number(1, 3, 3))),)),
        # twice the samples: the error of novelty moves a whole curve, and decides how wide an interval is
        "full": Budget("full", (molecules(Amount(number(3, 3, 5), num=512, few_num=1024)), prose(number(3, 3, 3)))),
    }
    if name not in budgets:
        raise ValueError(f"no budget {name!r}: choose quick (molecules) or full (molecules and prose)")
    known = {domain.name: domain for domain in budgets[name].domains}
    for each in domains:
        if each not in known:
            raise ValueError(f"no domain {each!r} in the budget {name}: it has {', '.join(known)}; full has prose too")
    chosen = tuple(known[each] for each in domains or known)
    if judge is not None:
        if all(domain.judge is None for domain in chosen):
            raise ValueError(f"--judge {judge}: no samples are judged here; it is for prose, which --budget full has")
        chosen = tuple(domain if domain.judge is None else replace(domain, judge=judge) for domain in chosen)
    return Budget(name, chosen)
