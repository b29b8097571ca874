"""All recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from duality.data.tokenizer_specs import BPE, Bytes, Characters, Pretrained
from duality.diffusion import schedules
from duality.diffusion.schedules import Cosine, LogLinear, Polynomial
from duality.methods import METHODS
from duality.networks.dit import SIZES, DiT
from duality.recipes import laptop, paper
from duality.recipes.config import from_jsonable, nearest, override, to_jsonable
from duality.recipes.recipe import Data, Recipe
from duality.training.distillation import DISTILLATIONS
from duality.training.settings import Training

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
    *METHODS,
    *DISTILLATIONS.values(),
    *schedules.CLOCKS,
    LogLinear,
    Cosine,
    Polynomial,
)


REGISTRY: dict[str, type] = {kind.__name__: kind for kind in _COMPONENTS}


CHOICES: dict[str, Any] = {
    **SIZES,
    "bytes": Bytes(),
    "characters": Characters(),
    "bpe": BPE(),
    "gpt2": Pretrained("gpt2"),
    "bert-base-uncased": Pretrained("bert-base-uncased"),
    **{kind.__name__: kind() for kind in (*schedules.CLOCKS, LogLinear, Cosine, Polynomial, *METHODS)},
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
