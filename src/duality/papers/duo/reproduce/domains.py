"""Domains and budgets: which models of which data, how quality and diversity are measured there, and how much.

    molecules   QM9 SMILES: quality is the share of valid ones, decided by RDKit; diversity is novelty
    prose       novels: quality is Gen PPL under a language model, diversity is the entropy of a sample's tokens

domains.json holds the domains and the budgets, with the fields of these classes. A model has a key, such as "duo" or
"duo-posterior", under which the claims name it, and one run folder per seed. The keys of the short runs begin with
"short-": the models of Table 1 and of the curriculum's ablation, trained for equally many steps by the changes that
stand under "short"; those of the ablation have the paper's window and schedule, so that only the curriculum differs.
The judge of prose reads about three samples of 64 tokens a second, so there are few settings and few samples; at
temperature 0.5 a draw has as little entropy as a greedy tail at 1. The budget "full" has twice the samples of
molecules: the error of novelty moves a whole curve, and decides how wide an interval is.

The results of a domain are kept by the key of a model and its seed:

    OUT/runs/<key>-<seed>/                  the run folders
    OUT/likelihoods/<key>-<seed>.json       nats per token of held-out text
    OUT/variances/<key>-<seed>.json         variances of gradients, of several objectives
    OUT/samples/<key>-<seed>/               a sweep's folder: samples, scores, quality.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from duality.papers.duo import Entry
from duality.training.round_changes import RoundChanges

_CHEAP = 8  # steps: a sample costs little, and more of them can be written


@dataclass(frozen=True)
class Base:
    """A model that is trained from the beginning: a recipe, with changes as in ``--set``."""

    recipe: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Student:
    """A model that is distilled from the base under the key ``base``."""

    base: str
    method: str
    rounds: RoundChanges


@dataclass(frozen=True)
class _Seeds:
    """How many seeds: of bases, of students and of the short runs that compare likelihoods."""

    bases: int
    students: int
    short: int

    def base_seed(self, seed: int) -> int:
        """The seed of the base that a student with ``seed`` is distilled from."""
        return (seed - 1) % self.bases + 1


@dataclass(frozen=True)
class Amount:
    """How much is measured: seeds, samples, temperatures, numbers of steps, held-out sequences, draws of a gradient.

    ``num`` samples are written by each seed of a model in each setting, ``few_num`` if it has at most 8 steps; a model
    with one seed writes twice as many. ``tail_steps`` are the numbers of steps at which tails are compared. ``without``
    names claims that are not tried here.
    """

    seeds: _Seeds
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
        return (self.few_num if steps <= _CHEAP else self.num) * (2 if seeds == 1 else 1)


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
    models: Mapping[str, Base | Student]
    length: int
    amount: Amount

    def seeds(self, key: str) -> range:
        """The seeds of a model, from 1."""
        seeds = self.amount.seeds
        if isinstance(self.models[key], Student):
            return range(1, seeds.students + 1)
        return range(1, (seeds.short if key.startswith("short-") else seeds.bases) + 1)

    def rounds_of(self, key: str) -> int:
        """How many rounds the distillation of a student has."""
        model = self.models[key]
        return (model.rounds.rounds or 0) if isinstance(model, Student) else 0


@dataclass(frozen=True)
class Budget:
    """The domains of a reproduction."""

    name: str
    domains: tuple[Domain, ...]


def read_budget(
    name: str,
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
    content = json.loads(Path(__file__).with_name("domains.json").read_text(encoding="utf-8"))
    if name not in content["budgets"]:
        raise ValueError(f"no budget {name!r}: choose quick (molecules) or full (molecules and prose)")
    known = content["budgets"][name]
    for each in domains:
        if each not in known:
            raise ValueError(f"no domain {each!r} in the budget {name}: it has {', '.join(known)}; full has prose too")
    chosen = []
    for each in domains or known:
        given = {**known[each], "seeds": known[each]["seeds"] if seeds is None else (seeds,) * 3}
        domain = _read_domain(each, content["domains"][each], given)
        numbers = domain.amount.seeds if base_seeds is None else replace(domain.amount.seeds, bases=base_seeds)
        read_by = domain.judge and (judge or domain.judge)
        chosen.append(replace(domain, judge=read_by, amount=replace(domain.amount, seeds=numbers)))
    if judge is not None and all(domain.judge is None for domain in chosen):
        raise ValueError(f"--judge {judge}: no samples are judged here; it is for prose, which --budget full has")
    return Budget(name, tuple(chosen))


def _read_domain(name: str, entry: Entry, amount: Entry) -> Domain:
    """A domain of domains.json, with the amount that a budget gives it."""
    short, own = entry.pop("short", ()), entry.pop("amount", {})
    models: dict[str, Base | Student] = {}
    for key, model in entry.pop("models").items():
        if "base" in model:
            models[key] = Student(**{**model, "rounds": RoundChanges(**model["rounds"])})
        else:
            changes = (*(short if key.startswith("short-") else ()), *model.get("changes", ()))
            models[key] = Base(model["recipe"], changes)
    fields: Entry = {
        key: tuple(value) if isinstance(value, list) else value for key, value in {**own, **amount}.items()
    }
    return Domain(name=name, models=models, amount=Amount(**{**fields, "seeds": _Seeds(*fields["seeds"])}), **entry)


def run_folder(out: Path, key: str, seed: int) -> Path:
    """Where the run of a model with a seed is."""
    return out / "runs" / f"{key}-{seed}"


def result_path(out: Path, kind: str, key: str, seed: int) -> Path:
    """Where the likelihood or the variances of a model with a seed are kept."""
    return out / kind / f"{key}-{seed}.json"
