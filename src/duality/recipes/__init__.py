"""Recipes: everything that rebuilds a run, written as functions that derive from each other.

``laptop.py`` has those that train in minutes, ``paper.py`` a row of the paper's tables each. ``recipe(name)`` looks one
up; ``--set training.steps=500`` changes a field; the recipe as it ran is saved beside the weights. To add one: a
function in either file, and its name in that file's ``ROWS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from duality import methods, schedules
from duality.backbones.dit import SIZES, DiT
from duality.config import from_jsonable, nearest, override, to_jsonable
from duality.data import BPE, Bytes, Characters, Pretrained
from duality.distillation import DISTILLATIONS
from duality.recipes import laptop, paper
from duality.recipes.recipe import Data, Recipe, distilled
from duality.schedules import Cosine, LogLinear, Polynomial
from duality.train import Training

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in (*laptop.ROWS, *paper.ROWS)}

_COMPONENTS: tuple[type, ...] = (
    Recipe,
    Data,
    Training,
    DiT,
    Bytes,
    Characters,
    BPE,
    Pretrained,
    *methods.METHODS,
    *DISTILLATIONS.values(),
    *schedules.CLOCKS,
    LogLinear,
    Cosine,
    Polynomial,
)
__all__ = [
    "CHOICES",
    "RECIPES",
    "REGISTRY",
    "Data",
    "Recipe",
    "differences",
    "distilled",
    "from_json",
    "modified",
    "recipe",
    "to_json",
]
REGISTRY: dict[str, type] = {kind.__name__: kind for kind in _COMPONENTS}

CHOICES: dict[str, Any] = {
    **SIZES,
    "bytes": Bytes(),
    "characters": Characters(),
    "bpe": BPE(),
    "gpt2": Pretrained("gpt2"),
    "bert-base-uncased": Pretrained("bert-base-uncased"),
    **{kind.__name__: kind() for kind in (*schedules.CLOCKS, LogLinear, Cosine, Polynomial, *methods.METHODS)},
}


def recipe(name: str, assignments: tuple[str, ...] = ()) -> Recipe:
    """A recipe by name, with ``field=value`` assignments applied."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}: {nearest(name, RECIPES)}")
    return modified(RECIPES[name](), assignments)


def modified(base: Recipe, assignments: tuple[str, ...]) -> Recipe:
    """``base`` with ``field=value`` assignments applied."""
    return override(base, assignments, REGISTRY, CHOICES)


def to_json(chosen: Recipe) -> Any:
    """The recipe as plain JSON data."""
    return to_jsonable(chosen)


def from_json(data: Any) -> Recipe:
    """The recipe that ``to_json`` wrote."""
    loaded = from_jsonable(data, REGISTRY)
    if not isinstance(loaded, Recipe):
        raise ValueError(f"this is a {type(loaded).__name__}, not a recipe: the file is not a run's recipe.json")
    return loaded


def differences(left: Recipe, right: Recipe) -> list[str]:
    """Where two recipes differ, as ``path: left -> right``."""

    def walk(a: Any, b: Any, path: str) -> list[str]:
        if type(a) is type(b) and type(a) in _COMPONENTS:
            return [
                line
                for field in fields(a)
                for line in walk(getattr(a, field.name), getattr(b, field.name), f"{path}.{field.name}".lstrip("."))
            ]
        return [] if a == b else [f"{path}: {a!r} -> {b!r}"]

    return walk(left, right, "")
