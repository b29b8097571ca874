"""All recipes by name, a recipe as JSON and back, and ``--set field=value``.

The types that JSON may name and the ready-made components that ``--set`` may choose come from the registries of
methods, schedules, backbones, tokenizers and distillations: what is registered can be saved, read back and chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass

from duality.diffusion import GAUSSIAN_SCHEDULES, SCHEDULES
from duality.methods import METHODS
from duality.networks import BACKBONES, FORMER_SIZES, SIZES
from duality.recipes import laptop, molecules, paper
from duality.recipes.config import Json, component, from_jsonable, override, to_jsonable
from duality.recipes.recipe import Data, Generation, Recipe
from duality.registry import suggestion
from duality.tokenizers import TOKENIZERS
from duality.tokenizers.specs import KeptTokenizer, tokenizer_at
from duality.training import DISTILLATIONS
from duality.training.settings import Parallel, Training

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in (*laptop.ROWS, *molecules.ROWS, *paper.ROWS)}

# Earlier names of fields, in recipes of older versions.
_FORMER_NAMES: dict[tuple[str, str], str] = {
    ("Duo", "clock"): "gaussian_schedule",
    ("DCD", "clock"): "gaussian_schedule",
    **{(name, "times"): "training_schedule" for name in ("Duo", "UDLM", "MDLM", "SEDD", "D3PM")},
}

FORMAT = 6  # of recipe.json; in format 1, which had no number, fields may be missing that were added later

# Fields that were added in formats 3 to 6, and their values for what earlier versions did.
_ADDED: dict[tuple[str, str], Callable[[dict[str, Json]], Json]] = {
    ("Recipe", "parallel"): lambda data: to_jsonable(Parallel()),
    ("Training", "checkpoint"): lambda data: Training.checkpoint,
    ("Data", "eos"): lambda data: Data.eos,
    ("Data", "stream"): lambda data: Data.stream,
    ("AR", "begin"): lambda data: None,
    ("Training", "freeze"): lambda data: Training.freeze,
    ("Training", "lora"): lambda data: Training.lora,
    ("Training", "lora_alpha"): lambda data: Training.lora_alpha,
    ("Training", "lora_layers"): lambda data: Training.lora_layers,
}

# Fields that recipes of format 1 may not have either.
_FORMER_VALUES: dict[tuple[str, str], Callable[[dict[str, Json]], Json]] = {
    # padding has no effect on a wrapped corpus: its runs read like those of today, and can be continued
    ("Data", "padding"): lambda data: "ignore" if data.get("packing") == "document" else Data.padding,
    ("Data", "documents"): lambda data: "auto",
    ("Data", "column"): lambda data: Data.column,
    ("DCD", "compare"): lambda data: "output",
    ("DiT", "activation"): lambda data: "gelu",
    ("Training", "optimizer"): lambda data: "adamw",
    ("Training", "recompute"): lambda data: False,
    ("Training", "compile"): lambda data: False,
    ("Recipe", "distillation"): lambda data: None,
    ("Recipe", "generation"): lambda data: to_jsonable(Generation()),
    ("Training", "phase_steps"): lambda data: None,
    **_ADDED,
}


def choices() -> dict[str, object]:
    """Ready-made components by name, for ``--set backbone=mini`` or ``--set data.tokenizer=bytes``."""
    registries = (SIZES, BACKBONES, TOKENIZERS, SCHEDULES, GAUSSIAN_SCHEDULES, METHODS)
    return {name: entry() for registry in registries for name, entry in registry.items()}


def components() -> dict[str, type]:
    """The types that the JSON of a recipe may name."""
    registered = (*choices().values(), *(entry() for entry in DISTILLATIONS.values()))
    fixed = (Recipe, Data, Training, Generation, Parallel, KeptTokenizer)
    kinds = (*fixed, *dict.fromkeys(type(each) for each in registered))
    return {kind.__name__: kind for kind in kinds}


def recipe(name: str, assignments: tuple[str, ...] = ()) -> Recipe:
    """A recipe by name, with ``field=value`` assignments applied."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}: {suggestion(name, RECIPES)}")
    return modified(RECIPES[name](), assignments)


def modified(base: Recipe, assignments: tuple[str, ...]) -> Recipe:
    """``base`` with ``field=value`` assignments applied."""
    return override(base, assignments, components(), choices(), FORMER_SIZES, tokenizer_at)


def to_json(chosen: Recipe) -> Json:
    """The recipe as plain JSON data."""
    return {"format": FORMAT, **component(chosen)}


def from_json(data: Json) -> Recipe:
    """The recipe that ``to_json`` wrote, in this format or an older one."""
    if isinstance(data, dict) and "format" in data:
        found = data["format"]
        if found not in (2, 3, 4, 5, FORMAT):
            raise ValueError(f"the recipe has format {found!r}, this version reads {FORMAT} and older ones")
        data = {name: value for name, value in data.items() if name != "format"}
        data = current_fields(data, _ADDED) if found != FORMAT else data
    else:
        data = current_fields(data, _FORMER_VALUES)
    loaded = from_jsonable(data, components())
    if not isinstance(loaded, Recipe):
        raise ValueError(f"this is a {type(loaded).__name__}, not a recipe: the file is not a run's recipe.json")
    return loaded


def current_fields(data: Json, added: Mapping[tuple[str, str], Callable[[dict[str, Json]], Json]]) -> Json:
    """The JSON of an older format with the fields of today: earlier names are replaced, later fields are added."""
    if not isinstance(data, dict):
        return [current_fields(each, added) for each in data] if isinstance(data, list) else data
    kind = str(data.get("type"))
    named = {_FORMER_NAMES.get((kind, name), name): current_fields(value, added) for name, value in data.items()}
    missing = {name: value for (owner, name), value in added.items() if owner == kind and name not in named}
    return {**named, **{name: value(named) for name, value in missing.items()}}


def differences(left: Recipe, right: Recipe) -> list[str]:
    """Where two recipes differ, as ``path: left -> right``."""

    def walk(a: object, b: object, path: str) -> list[str]:
        if type(a) is type(b) and is_dataclass(a):
            return [
                line
                for field in fields(a)
                for line in walk(getattr(a, field.name), getattr(b, field.name), f"{path}.{field.name}".lstrip("."))
            ]
        return [] if a == b else [f"{path}: {a!r} -> {b!r}"]

    return walk(left, right, "")
