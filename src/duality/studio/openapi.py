"""The description of the interface in OpenAPI 3.1: what the addresses answer; the forms are those that are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from duality.studio.schemas import Form, Json


@dataclass(frozen=True)
class Operation:
    """What an address does: its answer, how it is found, the form of its body if it is sent one, its parameters."""

    about: str
    answer: Json
    call: Callable[..., object]
    form: type[Form] | None = None
    parameters: tuple[Json, ...] = ()

    def describe(self) -> Json:
        """The operation for OpenAPI."""
        content: Json = {"application/json": {"schema": self.answer}}
        sentence = "one sentence that says what is allowed"
        refused = {"description": sentence, "content": {"application/json": {"schema": _REFUSED}}}
        answers = {"200": {"description": self.about, "content": content}, "4XX": refused, "503": refused}
        found: Json = {"summary": self.about, "responses": answers}
        if self.form is None:
            return {"get": {**found, "parameters": list(self.parameters)}}
        if "stream" in self.form.model_fields:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        body = {"required": True, "content": {"application/json": {"schema": self.form.describe_body()}}}
        return {"post": {**found, "requestBody": body}}


def describe_interface(version: str, operations: Mapping[str, Operation]) -> Json:
    """The description of the interface."""
    paths = {path: operation.describe() for path, operation in operations.items()}
    return {"openapi": "3.1.0", "info": {"title": "duality studio", "version": version}, "paths": paths}


def _record(**properties: object) -> Json:
    """An object with at least these properties: each a type, or a schema; in a list, for a list of these."""

    def schema(kind: object) -> Json:
        if isinstance(kind, list):
            return {"type": "array", "items": schema(kind[0])}
        return kind if isinstance(kind, dict) else TypeAdapter(kind).json_schema()  # type: ignore[arg-type]

    schemas = {name: schema(kind) for name, kind in properties.items()}
    return {"type": "object", "required": list(properties), "properties": schemas}


OBJECT: Json = {"type": "object"}
RUNS = _record(runs=[_record(id=str, path=str, state=str, step=int | None, problem=str | None)], judge=str | None)
METRICS, SAMPLES = _record(rows=[_record(step=int)]), _record(rows=[_record(step=int, texts=[str])])
OPERATOR = _record(states=int, gaussian=[float], discrete=[float], slope=[float])
HEALTH = _record(status=str, waiting=int, version=str)
MODELS = _record(object=str, data=[_record(id=str, object=str, created=int, owned_by=str)])
_SAMPLE = _record(
    **dict.fromkeys(("text", "full_text", "tail"), str),
    **dict.fromkeys(("index", "steps", "seed"), int),
    **dict.fromkeys(("temperature", "token_entropy"), float),
    tokens=[int],
    pieces=dict,
)
WRITTEN = _record(
    **dict.fromkeys(("run", "command"), str),
    **dict.fromkeys(("trained_steps", "num", "calls"), int),
    mask=int | None,
    seconds=float,
    samples=[_SAMPLE],
)
_TOKEN = _record(token=int, text=str, nats=float | None, stderr=float | None)
SCORED = _record(run=str, kind=str, tokens=[_TOKEN], nats=float | None, bits_per_character=float | None)
JUDGED = _record(judge=str, perplexity=float | None)
_CHOICE = _record(index=int, text=str, finish_reason=str | None, logprobs=dict | None)
_USAGE = _record(prompt_tokens=int, completion_tokens=int, total_tokens=int)
COMPLETED = _record(id=str, object=str, created=int, model=str, choices=[_CHOICE], usage=_USAGE, command=str)
_REFUSED = _record(error=_record(message=str, type=str, code=int))

NAME: Json = {"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}
AFTER, STATES = (
    {"name": name, "in": "query", "schema": {"type": "integer"}, "description": about}
    for name, about in (("after", "only steps after this one"), ("states", "how many tokens; 8 if absent"))
)
