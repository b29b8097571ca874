"""The fields of a request: what they may be, checked one by one, and the same as a schema for OpenAPI.

    GENERATE.read({"run": "demo", "steps": 8})   ->   {"run": "demo", "steps": 8, "prompt": "", ...}

What must hold: whatever JSON is given, ``read`` gives a value of the right type for every field, or refuses it in one
sentence that names the field, what was got and what is allowed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from duality.files.json_files import parse_json
from duality.registry import suggestion
from duality.studio.limits import Limits, Refusal, one_line

T = TypeVar("T")
Values = dict[str, object]

LIMITS = Limits()
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Field:
    """A field of a request; ``default`` is taken where it is absent or null, unless it is ``required``."""

    about: str
    default: object = None
    required: bool = field(default=False, kw_only=True)

    def checked(self, value: object, name: str) -> object:
        """The value, or a refusal."""
        raise NotImplementedError

    def schema(self) -> dict[str, object]:
        """The field for OpenAPI."""
        raise NotImplementedError


@dataclass(frozen=True)
class Text(Field):
    """A string of limited length."""

    most: int = field(default=LIMITS.text, kw_only=True)

    def checked(self, value: object, name: str) -> object:
        if not isinstance(value, str):
            raise wrong(name, value, "a string")
        if len(value) > self.most:
            raise Refusal(400, f"{name} has {len(value):,} characters: at most {self.most:,} are allowed")
        if "\0" in value:
            raise Refusal(400, f"{name} has the character NUL: leave it out, as no command line can hold it")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Refusal(400, f"{name} has half a surrogate pair: send whole characters") from None
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "string", "maxLength": self.most}


@dataclass(frozen=True)
class Choice(Field):
    """One of some words."""

    words: tuple[str, ...] = field(default=(), kw_only=True)

    def checked(self, value: object, name: str) -> object:
        if not isinstance(value, str):
            raise wrong(name, value, f"one of {', '.join(self.words)}")
        if value not in self.words:
            raise Refusal(400, f"{name} is {shown(value)}: {suggestion(value, self.words)}")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "string", "enum": list(self.words)}


@dataclass(frozen=True)
class Whole(Field):
    """A whole number."""

    least: int = field(default=0, kw_only=True)
    most: int = field(default=1 << 31, kw_only=True)

    def checked(self, value: object, name: str) -> object:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not self.least <= value <= self.most:
            raise wrong(name, value, f"a whole number from {self.least} to {self.most}")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Number(Field):
    """A number; ``least`` itself is allowed, ``above`` is not."""

    least: float | None = field(default=None, kw_only=True)
    above: float = field(default=0.0, kw_only=True)
    most: float = field(default=1.0, kw_only=True)

    def checked(self, value: object, name: str) -> object:
        if type(value) not in (int, float) or not isinstance(value, (int, float)) or not self._inside(value):
            low = f"above {self.above:g}" if self.least is None else f"of at least {self.least:g}"
            raise wrong(name, value, f"a number {low} and at most {self.most:g}")
        return float(value)

    def _inside(self, value: float) -> bool:
        try:
            low = value > self.above if self.least is None else value >= self.least
            return math.isfinite(value) and low and value <= self.most
        except OverflowError:  # a whole number that no float can hold
            return False

    def schema(self) -> dict[str, object]:
        low = {"exclusiveMinimum": self.above} if self.least is None else {"minimum": self.least}
        return {"type": "number", **low, "maximum": self.most}


@dataclass(frozen=True)
class Yes(Field):
    """True or false."""

    def checked(self, value: object, name: str) -> object:
        if not isinstance(value, bool):
            raise wrong(name, value, "true or false")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Pairs(Field):
    """Places and tokens that stay: [[place, token], ...]."""

    def checked(self, value: object, name: str) -> object:
        if not isinstance(value, list) or len(value) > LIMITS.length or not all(is_pair(each) for each in value):
            raise wrong(name, value, f"a list of at most {LIMITS.length} pairs [place, token] of whole numbers")
        return dict(value)

    def schema(self) -> dict[str, object]:
        number = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
        pair = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
        return {"type": "array", "items": pair, "maxItems": LIMITS.length}


def is_pair(value: object) -> bool:
    """Whether it is a list of two whole numbers."""
    return isinstance(value, list) and len(value) == 2 and all(type(v) is int and 0 <= v <= _LARGEST for v in value)


@dataclass(frozen=True)
class Texts(Field):
    """A string, or a list of some strings."""

    most: int = field(default=4, kw_only=True)

    def checked(self, value: object, name: str) -> object:
        many = [value] if isinstance(value, str) else value
        if not isinstance(many, list) or len(many) > self.most:
            raise wrong(name, value, f"a string, or a list of at most {self.most}")
        return [Text("").checked(each, name) for each in many]

    def schema(self) -> dict[str, object]:
        text = {"type": "string", "maxLength": LIMITS.text}
        return {"oneOf": [text, {"type": "array", "items": text, "maxItems": self.most}]}


@dataclass(frozen=True)
class Form:
    """The fields of a kind of request; ``others`` are known names that are ignored."""

    fields: Mapping[str, Field]
    others: tuple[str, ...] = ()

    def read(self, data: object) -> Values:
        """A value for every field."""
        if not isinstance(data, dict):
            raise Refusal(400, f"the body is {kind_of(data)}: send a JSON object")
        for name in data:
            if name not in self.fields and name not in self.others:
                raise Refusal(400, f"unknown field {shown(name)}: {suggestion(str(name)[:80], self.fields)}")
        found: Values = {}
        for name, each in self.fields.items():
            value = data.get(name)
            if value is None and each.required:
                raise Refusal(400, f"the field {name} is missing: {each.about}")
            found[name] = each.default if value is None else each.checked(value, name)
        return found

    def schema(self) -> dict[str, object]:
        """The form for OpenAPI."""
        properties: dict[str, object] = {name: {} for name in self.others}
        for name, each in self.fields.items():
            own = each.schema() if each.required else {"anyOf": [each.schema(), {"type": "null"}]}
            properties[name] = {**own, "description": each.about}
        return {
            "type": "object",
            "additionalProperties": False,
            "required": [name for name, each in self.fields.items() if each.required],
            "properties": properties,
        }


def parsed(body: bytes) -> object:
    """The JSON of a body."""
    try:
        return parse_json(body, "the body", "send a JSON object in UTF-8")
    except ValueError as error:
        raise Refusal(400, one_line(error)[:300]) from None


def wrong(name: str, value: object, allowed: str) -> Refusal:
    """A field with a value that it cannot have."""
    return Refusal(400, f"{name} is {shown(value)}: it must be {allowed}")


def shown(value: object) -> str:
    """A value in a message: short, and on one line."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = "something else"
    return text if len(text) <= 60 else f"{text[:57]}..."


def kind_of(value: object) -> str:
    """The kind of a JSON value in words."""
    kinds = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return kinds.get(type(value), "null")


class Typed(Generic[T]):
    """Reads a field of a request with its type.

    >>> Typed(int).of({"steps": 8}, "steps")
    8
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind

    def of(self, values: Values, name: str) -> T:
        """The value, which is there."""
        value = values[name]
        assert isinstance(value, self.kind), f"{name} was checked"
        return value

    def maybe(self, values: Values, name: str) -> T | None:
        """The value, or None."""
        return None if values[name] is None else self.of(values, name)
