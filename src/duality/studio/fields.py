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
from typing import Generic, TypeVar, get_args

from duality.protocols import Tail
from duality.registry import suggestion
from duality.samplers import GRIDS, SAMPLERS
from duality.studio.limits import Limits, Refusal

T = TypeVar("T")
Values = dict[str, object]

LIMITS = Limits()
_DEEPEST = 32


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
    """A number; ``above`` is excluded."""

    above: float = field(default=-math.inf, kw_only=True)
    most: float = field(default=math.inf, kw_only=True)

    def checked(self, value: object, name: str) -> object:
        good = type(value) in (int, float) and isinstance(value, (int, float)) and self._inside(value)
        if not good:
            raise wrong(name, value, f"a number above {self.above:g} and at most {self.most:g}")
        return float(value)  # type: ignore[arg-type]

    def _inside(self, value: float) -> bool:
        try:
            return math.isfinite(value) and self.above < value <= self.most
        except OverflowError:  # a whole number that no float can hold
            return False

    def schema(self) -> dict[str, object]:
        return {"type": "number", "exclusiveMinimum": self.above, "maximum": self.most}


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
        pairs = value if isinstance(value, list) and len(value) <= LIMITS.length else None
        if pairs is None or not all(
            isinstance(pair, list) and len(pair) == 2 and all(type(part) is int and part >= 0 for part in pair)
            for pair in pairs
        ):
            raise wrong(name, value, f"a list of at most {LIMITS.length} pairs [place, token] of whole numbers")
        return dict(pairs)

    def schema(self) -> dict[str, object]:
        pair = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
        return {"type": "array", "items": pair, "maxItems": LIMITS.length}


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
                raise Refusal(400, f"unknown field {shown(name)}: {suggestion(str(name), self.fields)}")
        found: Values = {}
        for name, each in self.fields.items():
            value = data.get(name)
            if value is None and each.required:
                raise Refusal(400, f"the field {name} is missing: {each.about}")
            found[name] = each.default if value is None else each.checked(value, name)
        return found

    def schema(self) -> dict[str, object]:
        """The form for OpenAPI."""
        return {
            "type": "object",
            "additionalProperties": False,
            "required": [name for name, each in self.fields.items() if each.required],
            "properties": {name: {**each.schema(), "description": each.about} for name, each in self.fields.items()},
        }


def parsed(body: bytes) -> object:
    """The JSON of a body."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8 text at byte {error.start}: send JSON in UTF-8") from None
    depth = deepest = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        raise Refusal(400, f"the body is nested more than {_DEEPEST} deep: send a flat JSON object")
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refusal(400, f"the body is no JSON ({str(error)[:100]}): send a JSON object") from None


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


SAMPLING: Mapping[str, Field] = {
    "run": Text("which model: an id that GET /api/runs lists", required=True, most=300),
    "steps": Whole("network calls; the model's own number if absent", least=1, most=LIMITS.steps),
    "sampler": Choice("how it is written; the model's own sampler if absent", words=("own", *SAMPLERS)),
    "eta": Number("the strength of a psi sampler", above=-1e-9, most=1.0),
    "grid": Choice("where the steps are", words=tuple(GRIDS)),
    "tail": Choice("how the last step chooses the tokens", words=get_args(Tail)),
    "temperature": Number("below 1 sharpens the belief", above=0.0, most=100.0),
    "top_p": Number("the share of the belief that is drawn from", 1.0, above=0.0, most=1.0),
    "label": Text("the class to write in", most=300),
    "guidance": Number("how much the class counts", above=-1e-9, most=100.0),
    "seed": Whole("the same seed gives the same text", 0, most=(1 << 63) - 1),
    "num": Whole("how many samples", 1, least=1, most=LIMITS.samples),
    "stream": Yes("whether every step is sent as it is taken (server-sent events)", False),
    "alternatives": Whole("how many of the most likely tokens of each place are sent with every step", 0, most=10),
}

GENERATE = Form(
    {
        **SAMPLING,
        "prompt": Text("what the text begins with", ""),
        "suffix": Text("what the text ends with", ""),
        "keep": Pairs("tokens that stay: pairs [place, token]", {}),
        "length": Whole("tokens of a sample; those of training if absent", least=1, most=LIMITS.length),
    }
)
FILL = Form(
    {
        **SAMPLING,
        "text": Text("a text with blanks", required=True),
        "blank": Text("how a blank is written", "___", most=100),
        "tokens_per_blank": Whole("tokens of a blank; those of a word if absent", least=1, most=LIMITS.length),
    }
)
LIKELIHOOD = Form(
    {
        "run": SAMPLING["run"],
        "text": Text("the text to measure", required=True),
        "draws": Whole("draws of time and noise", 16, least=1, most=LIMITS.draws),
        "seed": SAMPLING["seed"],
        "label": SAMPLING["label"],
    }
)
JUDGE = Form({"text": Text("the text that the judge reads", required=True)})
