"""Recipes: everything that rebuilds a run, as one frozen dataclass, written as functions that derive from each other.

``recipe(name)`` looks one up; ``--set training.steps=500`` changes a field; the recipe as it ran is saved beside the
weights. To add one: a function below, and its name in ``RECIPES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from duality import methods, schedules
from duality.backbones.dit import SIZES, DiT
from duality.config import from_jsonable, nearest, override, to_jsonable
from duality.data import BPE, DEFAULT_SOURCE, Bytes, Characters
from duality.methods import Duo
from duality.schedules import Cosine, LinearLogSnr, LogLinear, Polynomial
from duality.train import Training


@dataclass(frozen=True)
class Data:
    """What is learnt: a corpus (a named source, a file, a folder), how it becomes tokens and sequences."""

    corpus: str = DEFAULT_SOURCE
    tokenizer: Bytes | Characters | BPE = BPE(vocab_size=2048)
    length: int = 128
    validation: float = 0.05
    split: Literal["auto", "document", "position"] = "auto"

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"data.length is {self.length}: a sequence needs at least 1 token")


@dataclass(frozen=True)
class Recipe:
    """A run before it runs."""

    name: str
    summary: str
    source: str
    method: Duo
    data: Data
    backbone: DiT
    training: Training


def duo_laptop() -> Recipe:
    """Duo on real prose, in minutes on two CPU cores: what `make demo` trains."""
    return Recipe(
        name="duo-laptop",
        summary="Duo on public-domain novels, BPE, minutes on a laptop CPU",
        source="laptop scale; the method of Table 1, row 11",
        # A quarter of so few steps for the curriculum; a window and times that spend samples where little noise is
        # left, which is where a small network learns most (docs/experiments.md).
        method=Duo(curriculum=0.25, tau=0.03, alpha_max=0.99, clock=LinearLogSnr(), times=Polynomial()),
        data=Data(length=64),
        backbone=SIZES["laptop"],
        training=Training(
            steps=2600,
            batch_size=16,
            learning_rate=6e-3,
            warmup=100,
            decay=0.4,
            betas=(0.9, 0.99),
            weight_decay=0.05,
            ema=0.99,
            log_every=20,
            eval_every=650,
            save_every=325,
        ),
    )


def duo_laptop_plain() -> Recipe:
    """The same without curriculum: what the comparison of the paper's ablation needs."""
    base = duo_laptop()
    return replace(
        base,
        name="duo-laptop-plain",
        summary="duo-laptop without the curriculum",
        source="laptop scale; Table 3, row 2",
        method=replace(base.method, curriculum=0.0),
    )


def duo_laptop_chars() -> Recipe:
    """Characters instead of subwords: a vocabulary that one can read."""
    base = duo_laptop()
    return replace(
        base,
        name="duo-laptop-chars",
        summary="duo-laptop on characters",
        data=replace(base.data, tokenizer=Characters(), length=128),
        training=replace(base.training, batch_size=8),
    )


def duo_small() -> Recipe:
    """The paper's network and optimisation on your own corpus; needs a GPU."""
    return Recipe(
        name="duo-small",
        summary="the paper's 12 x 768 network and optimisation, on your --data",
        source="Table 1, row 11 (hyper-parameters; corpus and tokenizer are yours)",
        method=Duo(),
        data=Data(tokenizer=BPE(vocab_size=32_768), length=128),
        backbone=SIZES["small"],
        training=Training(),
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "duo-laptop": duo_laptop,
    "duo-laptop-plain": duo_laptop_plain,
    "duo-laptop-chars": duo_laptop_chars,
    "duo-small": duo_small,
}

_COMPONENTS: tuple[type, ...] = (
    Recipe,
    Data,
    Training,
    DiT,
    Bytes,
    Characters,
    BPE,
    *methods.METHODS,
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
    **{kind.__name__: kind() for kind in (*schedules.CLOCKS, LogLinear, Cosine, Polynomial)},
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
