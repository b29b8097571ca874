"""All recipes by name, a recipe as JSON and back, and ``--set field=value``.

    recipes.toml --> settings (field, value) --> Recipe <--> recipe.json
                     --set field=value

The recipes are data: a base, which is another recipe, and settings that differ. A setting means the same in
recipes.toml and on the command line. The classes that JSON may name and the components that a setting may choose come
from the registries of methods, schedules, backbones, tokenizers and distillations: what is registered can be saved,
read back and chosen.

What must hold: ``from_json(to_json(recipe)) == recipe``; reading a recipe imports what it names and nothing else; a
recipe.json with a field too few or too many is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path

from duality.data.named import datasets, shares_of
from duality.diffusion import GAUSSIAN_SCHEDULES, SCHEDULES
from duality.methods import METHODS
from duality.networks import BACKBONES, SIZES
from duality.recipes.config import Json, check, field_types, from_jsonable, parse, to_jsonable
from duality.recipes.recipe import Data, Generation, Recipe
from duality.registry import Entry, Registry, suggestion
from duality.tokenizers import TOKENIZERS
from duality.tokenizers.specs import KeptTokenizer, Pretrained, tokenizer_at
from duality.training import DISTILLATIONS
from duality.training.settings import Parallel, Training

FORMAT = 6  # of recipe.json

# What a setting may name, and what JSON may name as well.
_NAMED = (SIZES, BACKBONES, TOKENIZERS, SCHEDULES, GAUSSIAN_SCHEDULES, METHODS)
_CLASSES = (Recipe, Data, Generation, Training, Parallel, Pretrained, KeptTokenizer)


def _components() -> Registry:
    """The classes that the JSON of a recipe may name."""
    named: dict[str, str | Entry] = {kind.__name__: kind for kind in _CLASSES}
    for registry in (*_NAMED, DISTILLATIONS):
        named |= registry.classes()
    return Registry("component", named)


# --- recipes by name


@lru_cache(1)
def _table() -> dict[str, dict[str, object]]:
    """The entries of recipes.toml by name."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))


def recipe_names() -> tuple[str, ...]:
    """The names of all recipes."""
    return tuple(_table())


def recipe(name: str, assignments: tuple[str, ...] = ()) -> Recipe:
    """A recipe by name, with ``field=value`` assignments applied."""
    if name not in _table():
        raise ValueError(f"unknown recipe {name!r}: {suggestion(name, _table())}")
    settings: list[tuple[str, object]] = [("name", name)]
    base: object = name
    while isinstance(base, str):
        entry = dict(_table()[base])
        base = entry.pop("base", None)
        settings[:0] = _settings_in(entry)
    start = Recipe(name, "", "", METHODS["Duo"](), Data(), SIZES["small"](), Training())
    return modify(_with_settings(start, settings), assignments)


def _settings_in(table: dict[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The fields of a table and their values; ``type`` is the value of the table's own field and comes first."""
    if "type" in table:
        yield prefix.removesuffix("."), table["type"]
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _settings_in(value, f"{prefix}{name}.")
        elif name != "type":
            yield f"{prefix}{name}", value


# --- settings


def modify(
    base: Recipe, assignments: Sequence[str] = (), corpus: str | Path | None = None, column: str | None = None
) -> Recipe:
    """``base`` with ``field=value`` assignments applied, checked together at the end, in any order.

    Before that it gets another corpus and another key or column of the text, if these are given; a path is made
    absolute so that the run can be resumed from anywhere.
    """
    if corpus is not None:
        if not str(corpus).strip() or corpus == Path():  # which is the present folder
            raise ValueError("the corpus is empty: give a file, a folder, or a name that `duality data list` shows")
        base = replace(base, data=replace(base.data, corpus=_make_absolute(corpus)))
    if column is not None:
        base = replace(base, data=replace(base.data, column=column))
    settings = []
    for assignment in assignments:
        path, separator, text = (part.strip() for part in assignment.partition("="))
        if not separator or not path or not text:
            raise ValueError(f"{assignment!r} is no assignment: write --set field=value, such as training.steps=1000")
        settings.append((path, text))
    return _with_settings(base, settings)


def _make_absolute(spec: str | Path) -> str:
    """A corpus with its path made absolute, so that it is found from any folder."""
    path = Path(spec).expanduser()
    if path.exists():
        return str(path.resolve())
    if mixed := shares_of(str(spec)):
        return f"[{','.join(f'{_make_absolute(share)}:{weight:g}' for share, weight in mixed.items())}]"
    dataset, _, where = str(spec).partition("=")
    return f"{dataset}={Path(where).expanduser().resolve()}" if where and dataset in datasets() else str(spec)


def _with_settings(base: Recipe, settings: Iterable[tuple[str, object]]) -> Recipe:
    """``base`` with other values of fields; a text is read as the type of its field, or as the name of a component."""
    kinds, data = _components(), to_jsonable(base)
    for path, value in settings:
        parts, node, before = path.split("."), dict[str, Json](), data
        for above, part in zip(["", *parts], parts):
            if not isinstance(before, dict):
                raise ValueError(f"no field {path!r}: {above} is {before!r}, which has no parts")
            node, names = before, before.keys() - {"type"}
            if part not in names:
                raise ValueError(f"no field {path!r} ({node['type']} has no {part!r}): {suggestion(part, names)}")
            before = node[part]
        hint = field_types(kinds[str(node["type"])])[parts[-1]]
        if isinstance(before, dict):
            found = _chosen(str(value), hint, path, before)
        else:
            given = parse(value, hint) if isinstance(value, str) else value
            found = check(tuple(given) if isinstance(given, list) else given, hint, path)
        node[parts[-1]] = to_jsonable(found)
    changed = from_jsonable(data, kinds)
    assert isinstance(changed, Recipe), "a component keeps its type"
    return changed


def _chosen(text: str, hint: object, path: str, before: dict[str, Json]) -> object:
    """The component for a field that a text names: one of a registry, or a tokenizer by its place."""

    def fits(value: object) -> bool:
        with suppress(ValueError):
            return check(value, hint, "") is not None
        return False

    registry = next((registry for registry in _NAMED if text in registry), None)
    found = tokenizer_at(text) if registry is None else registry[text]()
    if found is not None and fits(found):
        return found
    ready = (name for registry in _NAMED for name in registry if fits(registry[name]()))
    parts = ", ".join(f"{path}.{name}" for name in before if name != "type")
    raise ValueError(f"{path} is {text!r}: choose from {', '.join(ready)}" + (f", or set {parts}" if parts else ""))


# --- JSON


def to_json(chosen: Recipe) -> Json:
    """The recipe as plain JSON data."""
    data = to_jsonable(chosen)
    assert isinstance(data, dict)
    return {"format": FORMAT, **data}


def from_json(data: Json) -> Recipe:
    """The recipe that ``to_json`` wrote."""
    if isinstance(data, dict):
        data = dict(data)
        found = data.pop("format", None)
        if found != FORMAT:
            raise ValueError(f"the recipe has format {found!r}, this version reads {FORMAT}")
    loaded = from_jsonable(data, _components())
    if not isinstance(loaded, Recipe):
        raise ValueError(f"this is a {type(loaded).__name__}, not a recipe: the file is not a run's recipe.json")
    return loaded


def differences(left: object, right: object, path: str = "") -> list[str]:
    """Where two recipes, or parts of recipes that are found at ``path``, differ, as ``path: left -> right``."""
    if type(left) is type(right) and is_dataclass(left):
        names = [field.name for field in fields(left)]
        parts = (differences(getattr(left, name), getattr(right, name), f"{path}.{name}".lstrip(".")) for name in names)
        return list(chain.from_iterable(parts))
    return [] if left == right else [f"{path}: {left!r} -> {right!r}"]
