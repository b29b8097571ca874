"""Frozen dataclasses as JSON and back.

A component is its configuration, so saving a run is writing down its dataclasses: each becomes an object with its class
under "type". Reading is typed: an unknown type or field is refused with the nearest names, a value of the wrong type
with what was got and what is allowed. The same check reads what a user sets on the command line. Nothing is evaluated,
and only the classes that the JSON names are imported.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from duality.registry import Entry, suggestion

T = TypeVar("T")
Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


def to_jsonable(value: object) -> Json:
    """Plain JSON data for a dataclass, a tuple or a scalar; a dataclass is an object with its class under "type"."""
    if is_dataclass(value) and not isinstance(value, type):
        values = {each.name: to_jsonable(getattr(value, each.name)) for each in fields(value)}
        return {"type": type(value).__name__, **values}
    if isinstance(value, tuple):
        return [to_jsonable(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{value!r} cannot be saved: a component is made of dataclasses, tuples, numbers, text and none")


def from_jsonable(data: Json, kinds: Mapping[str, Entry]) -> object:
    """Rebuild what ``to_jsonable`` wrote, with the classes of ``kinds``; every field must be there."""
    if isinstance(data, dict):
        name = data.get("type")
        if not isinstance(name, str) or name not in kinds:
            raise ValueError(f"unknown component {name!r}: {suggestion(str(name), kinds)}")
        kind: type = kinds[name]  # type: ignore[assignment]  # the registry of components has classes alone
        values = {field: from_jsonable(item, kinds) for field, item in data.items() if field != "type"}
        missing = [each.name for each in fields(kind) if each.name not in values]
        if missing:
            raise ValueError(f"{name} lacks {', '.join(missing)}: put back the file as it was written")
        return build(kind, values)
    if isinstance(data, list):
        return tuple(from_jsonable(item, kinds) for item in data)
    return data


@lru_cache(256)
def field_types(kind: type) -> dict[str, object]:
    """The type of each field of a dataclass."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def build(kind: type[T], values: dict[str, object]) -> T:
    """``kind(**values)`` with every name and type checked."""
    hints = field_types(kind)  # type: ignore[arg-type]  # every type is hashable
    for name in values:
        if name not in hints:
            raise ValueError(f"{kind.__name__} has no field {name!r}: {suggestion(name, hints)}")
    return kind(**{name: check(value, hints[name], f"{kind.__name__}.{name}") for name, value in values.items()})


def check(value: object, hint: object, where: str) -> object:
    """``value`` if it fits the type ``hint`` (an int is also a float), else a ValueError."""
    origin = get_origin(hint)
    if origin is Literal:
        if value in get_args(hint):
            return value
    elif origin in (Union, types.UnionType):
        for option in get_args(hint):
            with suppress(ValueError):
                return check(value, option, where)
    elif origin is tuple:
        kinds = get_args(hint)
        if isinstance(value, tuple) and len(value) == len(kinds):
            return tuple(check(item, kind, where) for item, kind in zip(value, kinds))
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:  # not NaN, not infinite, and no whole number beyond all floats
            return float(value)
    elif hint is int and (isinstance(value, bool) or (isinstance(value, int) and abs(value) >= 1 << 63)):
        pass
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    raise ValueError(f"{where} is {value!r}: it must be {describe(hint)}")


def describe(hint: object) -> str:
    """A type in words."""
    origin = get_origin(hint)
    if origin is Literal:
        choices = [repr(choice) for choice in get_args(hint)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(hint))
    if origin is tuple:
        return f"a list of {len(get_args(hint))}"
    words: dict[object, str] = {int: "a whole number below 2**63", float: "a number", bool: "true or false"}
    return {**words, str: "text", type(None): "none"}.get(hint, str(getattr(hint, "__name__", hint)))


def parse(text: str, hint: object) -> object:
    """The text of a user, as data of the type ``hint``."""
    if hint is str or get_origin(hint) is Literal:
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"none": None, "true": True, "false": False}.get(text.lower(), text)
