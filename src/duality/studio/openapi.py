"""The description of the interface in OpenAPI 3.1; the forms of requests are those that are checked.

What must hold: every route of the application is described, and answers what is described; tests compare them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from duality.studio.schemas import Completion, Fill, Form, Generate, Json, Judgement, Likelihood


@dataclass(frozen=True)
class Operation:
    """What an address does: its answer, the form of its body if it is sent one, and the parameters of its address."""

    about: str
    answer: Json
    form: type[Form] | None = None
    parameters: tuple[Json, ...] = ()

    def describe(self) -> Json:
        """The operation for OpenAPI."""
        content: Json = {"application/json": {"schema": self.answer}}
        error = _record(error=_record(message=str, type=str, code=int))
        sentence = "one sentence that says what is allowed"
        refused = {"description": sentence, "content": {"application/json": {"schema": error}}}
        answers = {"200": {"description": self.about, "content": content}, "4XX": refused, "503": refused}
        found: Json = {"summary": self.about, "responses": answers}
        if self.form is None:
            return {"get": {**found, "parameters": list(self.parameters)}}
        if "stream" in self.form.model_fields:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        body = {"required": True, "content": {"application/json": {"schema": self.form.schema_of_body()}}}
        return {"post": {**found, "requestBody": body}}


def describe_interface(version: str) -> Json:
    """The description of the interface."""
    paths = {path: operation.describe() for path, operation in OPERATIONS.items()}
    return {"openapi": "3.1.0", "info": {"title": "duality studio", "version": version}, "paths": paths}


def _record(**properties: object) -> Json:
    """An object with at least these properties: each a type, or a schema."""
    schemas = {}
    for name, kind in properties.items():
        schemas[name] = kind if isinstance(kind, dict) else TypeAdapter(kind).json_schema()  # type: ignore[arg-type]
    return {"type": "object", "required": list(properties), "properties": schemas}


def _many(schema: Json) -> Json:
    """A list of what is described."""
    return {"type": "array", "items": schema}


_SAMPLE = _record(
    **dict.fromkeys(("text", "full_text", "tail"), str),
    **dict.fromkeys(("index", "steps", "seed"), int),
    **dict.fromkeys(("temperature", "token_entropy"), float),
    tokens=list[int],
    pieces=dict,
)
_WRITTEN = _record(
    **dict.fromkeys(("run", "command"), str),
    **dict.fromkeys(("trained_steps", "num", "calls"), int),
    mask=int | None,
    seconds=float,
    samples=_many(_SAMPLE),
)
_TOKEN = _record(token=int, text=str, nats=float | None, stderr=float | None)
_SCORED = _record(run=str, kind=str, tokens=_many(_TOKEN), nats=float | None, bits_per_character=float | None)
_CHOICE = _record(index=int, text=str, finish_reason=str | None, logprobs=dict | None)
_USAGE = _record(prompt_tokens=int, completion_tokens=int, total_tokens=int)
_COMPLETED = _record(id=str, object=str, created=int, model=str, choices=_many(_CHOICE), usage=_USAGE, command=str)
_RUN = _record(id=str, path=str, state=str, step=int | None, problem=str | None)
_NUMBERS = list[float]
_MODEL = _record(id=str, object=str, created=int, owned_by=str)

_NAME: Json = {"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}
_AFTER, _STATES = (
    {"name": name, "in": "query", "schema": {"type": "integer"}, "description": about}
    for name, about in (("after", "only steps after this one"), ("states", "how many tokens; 8 if absent"))
)

OPERATIONS = {
    "/api/runs": Operation(
        "the runs, and what is known of them without loading them", _record(runs=_many(_RUN), judge=str | None)
    ),
    "/api/runs/{run}/recipe": Operation("the recipe of a run", {"type": "object"}, parameters=(_NAME,)),
    "/api/runs/{run}/metrics": Operation(
        "the logged steps of a run", _record(rows=_many(_record(step=int))), parameters=(_NAME, _AFTER)
    ),
    "/api/runs/{run}/samples": Operation(
        "the samples that a run wrote while it was trained",
        _record(rows=_many(_record(step=int, texts=list[str]))),
        parameters=(_NAME, _AFTER),
    ),
    "/api/operator": Operation(
        "the operator T of the paper, for a number of states",
        _record(states=int, gaussian=_NUMBERS, discrete=_NUMBERS, slope=_NUMBERS),
        parameters=(_STATES,),
    ),
    "/api/health": Operation(
        "whether the studio answers, and how much is waiting", _record(status=str, waiting=int, version=str)
    ),
    "/api/openapi.json": Operation("this description", {"type": "object"}),
    "/v1/models": Operation("the runs, as OpenAI lists models", _record(object=str, data=_many(_MODEL))),
    "/api/generate": Operation("write text; with stream, every step as an event", _WRITTEN, Generate),
    "/api/fill": Operation("fill in the blanks of a text; with stream, every step as an event", _WRITTEN, Fill),
    "/api/likelihood": Operation("the nats of each token of a text", _SCORED, Likelihood),
    "/api/judge": Operation(
        "the perplexity of a text under the judge that the studio was started with",
        _record(judge=str, perplexity=float | None),
        Judgement,
    ),
    "/v1/completions": Operation("write text, as OpenAI's completions", _COMPLETED, Completion),
}
