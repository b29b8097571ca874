"""The models of a reproduction: which recipe, which seed, and, for a student, which distillation of which base.

A model has a key, such as "duo" or "duo-posterior", under which the claims name it, and one run folder per seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from duality.training.round_changes import RoundChanges


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
    changes: tuple[str, ...] = ()


Models = Mapping[str, Base | Student]


@dataclass(frozen=True)
class Seeds:
    """How many seeds: of bases, of students and of the short runs that compare likelihoods."""

    bases: int
    students: int
    short: int

    def of(self, key: str, models: Models) -> range:
        """The seeds of a model, from 1."""
        if isinstance(models[key], Student):
            return range(1, self.students + 1)
        return range(1, (self.short if key.startswith("short-") else self.bases) + 1)

    def base_seed(self, seed: int) -> int:
        """The seed of the base that a student with ``seed`` is distilled from."""
        return (seed - 1) % self.bases + 1


def run_folder(out: Path, key: str, seed: int) -> Path:
    """Where the run of a model with a seed is."""
    return out / "runs" / f"{key}-{seed}"
