"""Domains and budgets: on what data the claims are tried, how quality and diversity are measured there, and how much.

    molecules   QM9 SMILES: quality is the share of valid ones, decided by RDKit; diversity is novelty
    prose       novels: quality is Gen PPL under a language model, diversity is the entropy of a sample's tokens

A budget says how many steps, samples, temperatures and seeds. ``quick`` is molecules only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from duality.reproduction.models import Base, Models, Seeds, Student
from duality.training import Compare, TeacherCopy
from duality.training.round_changes import RoundChanges

BudgetName = Literal["quick", "full"]
FEW = (2, 4, 8, 16, 32)


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


@dataclass(frozen=True)
class Budget:
    """How much is measured: samples of each case, temperatures, numbers of steps, held-out sequences, seeds."""

    name: BudgetName
    domains: tuple[Domain, ...]
    seeds: Seeds
    num: int = 256
    temperatures: tuple[float, ...] = (0.6, 0.8, 1.0, 1.2)
    few: tuple[int, ...] = FEW
    many: int = 128
    sequences: int = 512


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


def molecules(short: int = 250, rounds: int = 4, round_steps: int = 150) -> Domain:
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
    )


def prose(short: int = 1000, rounds: int = 4, round_steps: int = 200) -> Domain:
    """Novels."""
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
        models={**bases, **students("duo", "mdlm", rounds, round_steps, 1 / 64), **short_runs("laptop", short)},
        rounds=rounds,
        length=64,
    )


def budget_named(name: BudgetName, seeds: int | None = None) -> Budget:
    """A budget; ``seeds`` replaces all its numbers of seeds."""
    budgets = {
        "quick": Budget("quick", (molecules(),), Seeds(bases=1, students=3, short=3)),
        "full": Budget(
            "full",
            (molecules(1500, round_steps=300), prose()),
            Seeds(bases=3, students=3, short=5),
            num=512,
            temperatures=(0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2),
        ),
    }
    if name not in budgets:
        raise ValueError(f"no budget {name!r}: choose quick (molecules) or full (molecules and prose)")
    if seeds is None:
        return budgets[name]
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}: it must be at least 1")
    return replace(budgets[name], seeds=Seeds(seeds, seeds, seeds))
