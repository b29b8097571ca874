"""Frozen dataclasses to JSON and back, and ``--set field=value``.

A component is its configuration, so saving a run is writing down its dataclasses: each becomes an object with its class
under "type". Reading back goes through the same typed check as the command line: an unknown type or field is
refused with the nearest names, a value of the wrong type with what was got and what is allowed. Nothing is evaluated.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from duality.registry import suggestion

T = TypeVar("T")
Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


def to_jsonable(value: object) -> Json:
    """Plain JSON data for a dataclass, a tuple or a scalar."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return component(value)
    if isinstance(value, tuple):
        return [to_jsonable(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{value!r} cannot be saved: a component is made of dataclasses, tuples, numbers, text and none")


def component(value: object) -> dict[str, Json]:
    """A dataclass as a JSON object, with its class under "type"."""
    assert dataclasses.is_dataclass(value)
    fields = {field.name: to_jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {"type": type(value).__name__, **fields}


def from_jsonable(data: Json, registry: dict[str, type]) -> object:
    """Rebuild what ``to_jsonable`` wrote, with the classes of ``registry``; every field must be there."""
    if isinstance(data, dict):
        kind = data.get("type")
        if not isinstance(kind, str) or kind not in registry:
            raise ValueError(f"unknown component {kind!r}: {suggestion(str(kind), registry)}")
        values = {name: from_jsonable(item, registry) for name, item in data.items() if name != "type"}
        missing = [each.name for each in dataclasses.fields(registry[kind]) if each.name not in values]
        if missing:
            raise ValueError(f"{kind} lacks {', '.join(missing)}: put back the file as it was written")
        return build(registry[kind], values)
    if isinstance(data, list):
        return tuple(from_jsonable(item, registry) for item in data)
    return data


def build(kind: type[T], values: dict[str, object]) -> T:
    """``kind(**values)`` with every name and type checked."""
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = [field.name for field in fields]
    for name in values:
        if name not in names:
            raise ValueError(f"{kind.__name__} has no field {name!r}: {suggestion(name, names)}")
    checked = {name: check(value, hints[name], f"{kind.__name__}.{name}") for name, value in values.items()}
    return kind(**checked)


def check(value: object, hint: object, where: str) -> object:
    """``value`` if it fits the type ``hint`` (an int is also a float), else a ValueError."""
    origin = get_origin(hint)
    if origin is Literal:
        if value in get_args(hint):
            return value
    elif origin in (Union, types.UnionType):
        for option in get_args(hint):
            try:
                return check(value, option, where)
            except ValueError:
                continue
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
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(hint))
    words = {int: "a whole number below 2**63", float: "a number", bool: "true or false", str: "text"}
    words[type(None)] = "none"
    if hint in words:
        return words[hint]
    return f"a list of {len(get_args(hint))}" if origin is tuple else str(getattr(hint, "__name__", hint))


def parse(text: str, hint: object) -> object:
    """The text of a user, as data of the type ``hint``."""
    if hint is str or get_origin(hint) is Literal:
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {"none": None, "true": True, "false": False}.get(text.lower(), text)
    return tuple(value) if isinstance(value, list) else value


def override(
    root: T,
    assignments: Iterable[str],
    registry: dict[str, type],
    choices: dict[str, object],
    former: Mapping[str, str] = MappingProxyType({}),
    described: Callable[[str], object] = lambda text: None,
) -> T:
    """``root`` with ``path.to.field=value`` assignments applied, checked together at the end, in any order.

    ``choices`` names ready-made components, for ``backbone=mini`` or ``data.tokenizer=bytes``; ``former`` has earlier
    names of choices, and what they are called now. ``described`` gives the component that another text stands for, such
    as ``data.tokenizer=folder/tokenizer.json``, or None.
    """
    data = component(root)
    for assignment in assignments:
        path, separator, text = (part.strip() for part in assignment.partition("="))
        if not separator or not path or not text:
            raise ValueError(f"{assignment!r} is no assignment: write --set field=value, such as training.steps=1000")
        _assign(data, path, text, registry, choices, former, described)
    changed = from_jsonable(data, registry)
    assert isinstance(changed, type(root)), "a component keeps its type"
    return changed


def _assign(
    root: dict[str, Json],
    path: str,
    text: str,
    registry: dict[str, type],
    choices: dict[str, object],
    former: Mapping[str, str],
    described: Callable[[str], object],
) -> None:
    *parents, leaf = path.split(".")
    node = root
    for part in parents:
        inner = _field(node, part, path)
        if not isinstance(inner, dict):
            raise ValueError(f"no field {path!r}: {part} is {inner!r}, which has no parts")
        node = inner
    before = _field(node, leaf, path)
    hint = get_type_hints(registry[str(node["type"])])[leaf]
    if not isinstance(before, dict):
        node[leaf] = to_jsonable(check(parse(text, hint), hint, path))
        return
    ready = {name: choice for name, choice in choices.items() if _fits(choice, hint)}
    if text not in ready and (made := described(text)) is not None and _fits(made, hint):
        ready[text] = made
    if text not in ready:
        parts = ", ".join(f"{path}.{name}" for name in before if name != "type")
        now = f", which is now called {former[text]}" if former.get(text) in ready else ""
        raise ValueError(
            f"{path} is {text!r}{now}: choose from {', '.join(ready)}" + (f", or set {parts}" if parts else "")
        )
    node[leaf] = component(ready[text])


def _field(node: dict[str, Json], name: str, path: str) -> Json:
    """The value of a field; the error for a wrong name suggests the nearest names."""
    names = [each for each in node if each != "type"]
    if name not in names:
        raise ValueError(f"no field {path!r} ({node['type']} has no {name!r}): {suggestion(name, names)}")
    return node[name]


def _fits(value: object, hint: object) -> bool:
    try:
        check(value, hint, "")
    except ValueError:
        return False
    return True
