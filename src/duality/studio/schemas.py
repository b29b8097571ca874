"""The requests of the interface, how much one may ask for, and how one that asks for something else is refused.

    Generate.read(b'{"run": "demo", "steps": 8}')   ->   Generate(run="demo", steps=8, prompt="", ...)

What must hold: whatever JSON is given, ``read`` gives a value of the right type for every field, or refuses it in one
sentence that names the field, what was got and what is allowed. The fields of writing are arguments of ``Model.sample``
and ``Model.fill``, with their names; their defaults and help are those of ``models.requests``. A field of OpenAI's that
has no meaning here is refused unless its value changes nothing. Every limit that is crossed is named in the answer.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from duality.files.json_files import parse_json
from duality.models.requests import FillRequest, GridName, SampleRequest, SamplerName, ScoreRequest, Tail
from duality.registry import one_line, suggestion

AnyForm = TypeVar("AnyForm", bound="Form")
Json = dict[str, Any]  # an object


# --- limits


@dataclass(frozen=True)
class Limits:
    """The most that a request may ask for, and that the studio keeps."""

    body: int = 1 << 18  # bytes
    text: int = 20_000  # characters of a prompt, a suffix, a text
    length: int = 2048  # tokens of a sample; a model that was trained on longer ones writes these too
    steps: int = 4096
    samples: int = 16
    draws: int = 256
    rows: int = 10_000  # logged steps in one answer
    queue: int = 16  # requests that wait for one model
    models: int = 6  # models that are kept in memory
    connections: int = 256  # open at the same time
    backlog: int = 64  # events of one request that its client has not read yet
    seconds: float = 300.0  # of computing for one request
    waiting_seconds: float = 300.0  # in the queue of a model
    header_seconds: float = 10.0  # until the header of a request must have arrived
    body_seconds: float = 10.0  # until a body must have arrived
    stalled_seconds: float = 20.0  # in which a client reads nothing of what is waiting for it


class Refusal(Exception):
    """A request that is not answered: the status, and one sentence that says what is allowed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Cancelled(Exception):
    """Nobody waits for this work any more."""


# --- kinds of fields

LIMITS = Limits()


def _check_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("has the character NUL: leave it out, as no command line can hold it")
    return text


_Text = Annotated[str, Field(max_length=LIMITS.text), AfterValidator(_check_text)]
_Name = Annotated[str, Field(max_length=300), AfterValidator(_check_text)]
_Blank = Annotated[str, Field(max_length=100), AfterValidator(_check_text)]
_Run = Annotated[_Name, Field(description="which model: an id that GET /api/runs lists")]
_Steps = Annotated[int, Field(ge=1, le=LIMITS.steps)]
_Warmth = Annotated[float, Field(gt=0, le=100)]
_Length = Annotated[int, Field(ge=1, le=LIMITS.length)]
_Pair = Annotated[list[Annotated[int, Field(ge=0, le=(1 << 31) - 1)]], Field(min_length=2, max_length=2)]
_Seed = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]
_Num = Annotated[int, Field(ge=1, le=LIMITS.samples)]
_Share = Annotated[float, Field(gt=0, le=1)]


def _like(request: type, name: str) -> Any:
    """A field with the default and the help of a field of a request of the library (``models.requests``)."""
    default = next(each.default for each in fields(request) if each.name == name)
    source = "\n".join(inspect.getsource(each) for each in request.__mro__ if is_dataclass(each))
    about = re.search(rf'^    {name}: .*\n    """((?:.|\n)*?)\.?"""$', source, re.MULTILINE)
    assert about is not None
    return Field(default, description=" ".join(about[1].split()))


# --- requests


class Form(BaseModel):
    """A kind of request; a field that is null has its default, like one that is absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def read(cls: type[AnyForm], body: bytes) -> AnyForm:
        """The request of a body in JSON, or a refusal."""
        try:
            data = parse_json(body, "the body", "send a JSON object in UTF-8")
        except ValueError as error:
            raise Refusal(400, one_line(error)[:300]) from None
        if not isinstance(data, dict):
            kinds = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}
            raise Refusal(400, f"the body is {kinds.get(type(data), 'null')}: send a JSON object")
        fields, given = _fields(cls), dict[str, object]()
        for name, value in data.items():
            if name not in fields:
                raise Refusal(400, f"unknown field {_show(name)}: {suggestion(str(name)[:80], fields)}")
            whole = type(value) is float and value.is_integer() and fields[name].get("type") == "integer"
            if value is not None:
                given[name] = int(value) if whole else value
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise Refusal(400, _describe_mistake(error, fields, data)) from None


class Sampling(Form):
    """What requests to write have in common."""

    run: _Run
    steps: _Steps | None = _like(SampleRequest, "steps")
    sampler: SamplerName | None = _like(SampleRequest, "sampler")
    eta: Annotated[float, Field(ge=0, le=1)] | None = _like(SampleRequest, "eta")
    grid: GridName | None = _like(SampleRequest, "grid")
    tail: Tail | None = _like(SampleRequest, "tail")
    temperature: _Warmth | None = _like(SampleRequest, "temperature")
    top_p: _Share = _like(SampleRequest, "top_p")
    label: _Name | None = _like(SampleRequest, "label")
    guidance: Annotated[float, Field(ge=0, le=100)] | None = _like(SampleRequest, "guidance")
    seed: _Seed = _like(SampleRequest, "seed")
    num: _Num = _like(SampleRequest, "num")
    stream: bool = Field(False, description="whether every step is sent as it is taken (server-sent events)")
    alternatives: int = Field(
        0, ge=0, le=10, description="how many of the most likely tokens of each place are sent with every step"
    )

    def arguments(self) -> Json:
        """The arguments of ``Model.sample`` or ``Model.fill``."""
        return {name: value for name, value in self if name not in ("run", "stream", "alternatives")}


class Generate(Sampling):
    """A request to write a text."""

    length: _Length | None = _like(SampleRequest, "length")
    prompt: _Text = _like(SampleRequest, "prompt")
    suffix: _Text = _like(SampleRequest, "suffix")
    keep: list[_Pair] = Field([], max_length=LIMITS.length, description="tokens that stay: pairs [place, token]")

    def arguments(self) -> Json:
        return {**super().arguments(), "keep": {pair[0]: pair[1] for pair in self.keep}}


class Fill(Sampling):
    """A request to fill in the blanks of a text."""

    text: _Text = Field(description="a text with blanks")
    blank: _Blank = _like(FillRequest, "blank")
    tokens_per_blank: _Length | None = _like(FillRequest, "tokens_per_blank")


class Likelihood(Form):
    """A request for the nats of a text."""

    run: _Run
    text: _Text = Field(description="the text to measure")
    draws: int = Field(16, ge=1, le=LIMITS.draws, description="draws of time and noise")
    seed: _Seed = _like(ScoreRequest, "seed")
    label: _Name | None = _like(ScoreRequest, "label")


class Judgement(Form):
    """A request for the perplexity of a text."""

    text: _Text = Field(description="the text that the judge reads")


class Completion(Form):
    """A request of OpenAI's completions."""

    model: _Name = Field(description="which model: an id that GET /v1/models lists")
    prompt: _Text | Annotated[list[_Text], Field(max_length=1)] = Field(
        "", description="what the text begins with: a string, or a list of one"
    )
    suffix: _Text = _like(SampleRequest, "suffix")
    max_tokens: _Length = Field(16, description="tokens to write")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="below 1 likely tokens become likelier, and 0 is the coldest; the model's own if absent"
    )
    top_p: _Share = _like(SampleRequest, "top_p")
    seed: _Seed = _like(SampleRequest, "seed")
    n: _Num = Field(1, description="how many choices")
    best_of: _Num | None = Field(None, description="as n: all choices are returned")
    stop: _Text | Annotated[list[_Text], Field(max_length=4)] = Field(
        [], description="the text ends before the first of these"
    )
    logprobs: int | None = Field(
        None, ge=0, le=5, description="how many of the most likely tokens of each place are returned"
    )
    echo: bool = Field(False, description="whether the prompt is returned too")
    stream: bool = Field(False, description="whether the text is sent as it is written")
    stream_options: dict[Literal["include_usage"], bool] = Field({}, description="what the last part of a stream has")
    frequency_penalty: object = Field(0, description="models here have no such penalty", json_schema_extra={"const": 0})
    presence_penalty: object = Field(0, description="models here have no such penalty", json_schema_extra={"const": 0})
    logit_bias: object = Field({}, description="models here have no such bias", json_schema_extra={"const": {}})
    steps: _Steps | None = _like(SampleRequest, "steps")
    sampler: SamplerName | None = _like(SampleRequest, "sampler")
    tail: Tail | None = _like(SampleRequest, "tail")
    user: object = Field(None, description="ignored")

    @field_validator("frequency_penalty", "presence_penalty", "logit_bias")
    @classmethod
    def _check_neutral(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) or value != cls.model_fields[str(info.field_name)].default:
            raise ValueError("it changes something")
        return value


@lru_cache
def _fields(form: type[Form]) -> dict[str, Json]:
    """The schema of every field of a form, without null."""
    found: dict[str, Json] = form.model_json_schema()["properties"]
    for own in found.values():
        kinds = [kind for kind in own.pop("anyOf", []) if kind != {"type": "null"}]
        own |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}
    return found


def _describe_mistake(error: ValidationError, fields: dict[str, Json], data: Json) -> str:
    """What is wrong with the first field that is wrong, and what it may be, in one sentence."""
    mistakes = error.errors(include_url=False)
    name = str(mistakes[0]["loc"][0])
    about, kinds = fields[name], {each["type"]: each for each in mistakes if each["loc"][0] == name}
    if "missing" in kinds:
        return f"the field {name} is missing: {about['description']}"
    if long := kinds.get("string_too_long"):
        return f"{name} has {len(long['input']):,} characters: at most {long['ctx']['max_length']:,} are allowed"
    if "string_unicode" in kinds:
        return f"{name} has half a surrogate pair: send whole characters"
    if "value_error" in kinds and "const" not in about:
        return f"{name} {kinds['value_error']['ctx']['error']}"
    value, low, most = data[name], about.get("minimum"), about.get("maximum")
    if "enum" in about and isinstance(value, str):
        return f"{name} is {_show(value)}: {suggestion(value, about['enum'])}"
    if "const" in about:
        allowed = f"{about['const']}, or left out, because {about['description']}"
    elif "enum" in about:
        allowed = f"one of {', '.join(about['enum'])}"
    elif "anyOf" in about:
        allowed = f"a string, or a list of at most {about['anyOf'][1]['maxItems']}"
    elif about["type"] == "number":
        least = f"above {about['exclusiveMinimum']:g}" if low is None else f"of at least {low:g}"
        allowed = f"a number {least} and at most {most:g}"
    else:
        allowed = {
            "string": "a string",
            "boolean": "true or false",
            "integer": f"a whole number from {low} to {most}",
            "array": f"a list of at most {about.get('maxItems')} pairs [place, token] of whole numbers",
            "object": 'an object such as {"include_usage": true}',
        }[about["type"]]
    return f"{name} is {_show(value)}: it must be {allowed}"


def _show(value: object) -> str:
    """A value in a message: short, and on one line."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
