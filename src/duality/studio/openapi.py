"""The description of the interface, in OpenAPI 3.1; the forms of requests are those that are checked.

What must hold: every route of the application is described, and answers what is described; tests compare them.
"""

from __future__ import annotations

from duality.studio.completion_form import COMPLETION
from duality.studio.fields import Form
from duality.studio.forms import FILL, GENERATE, JUDGE, LIKELIHOOD

Schema = dict[str, object]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_ANYTHING: Schema = {"type": "object"}


def maybe(schema: Schema) -> Schema:
    """What is described, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    """A list of what is described."""
    return {"type": "array", "items": schema}


def record(**properties: Schema) -> Schema:
    """An object with at least these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


ERROR = record(error=record(message=_TEXT, type=_TEXT, code=_WHOLE))
SAMPLE = record(
    index=_WHOLE,
    text=_TEXT,
    full_text=_TEXT,
    tokens=many(_WHOLE),
    steps=_WHOLE,
    seed=_WHOLE,
    tail=_TEXT,
    temperature=_NUMBER,
    token_entropy=_NUMBER,
    pieces=_ANYTHING,
)
WRITTEN = record(
    run=_TEXT,
    trained_steps=_WHOLE,
    mask=maybe(_WHOLE),
    num=_WHOLE,
    command=_TEXT,
    seconds=_NUMBER,
    calls=_WHOLE,
    samples=many(SAMPLE),
)
TOKEN = record(token=_WHOLE, text=_TEXT, nats=maybe(_NUMBER), stderr=maybe(_NUMBER))
SCORED = record(run=_TEXT, kind=_TEXT, tokens=many(TOKEN), nats=maybe(_NUMBER), bits_per_character=maybe(_NUMBER))
CHOICE = record(index=_WHOLE, text=_TEXT, finish_reason=maybe(_TEXT), logprobs=maybe(_ANYTHING))
USAGE = record(prompt_tokens=_WHOLE, completion_tokens=_WHOLE, total_tokens=_WHOLE)
COMPLETED = record(
    id=_TEXT, object=_TEXT, created=_WHOLE, model=_TEXT, choices=many(CHOICE), usage=USAGE, command=_TEXT
)
RUN = record(id=_TEXT, path=_TEXT, state=_TEXT, step=maybe(_WHOLE), problem=maybe(_TEXT))
LOGGED = record(rows=many(record(step=_WHOLE)))
WROTE = record(rows=many(record(step=_WHOLE, texts=many(_TEXT))))
OPERATOR = record(states=_WHOLE, gaussian=many(_NUMBER), discrete=many(_NUMBER), slope=many(_NUMBER))
MODELS = record(object=_TEXT, data=many(record(id=_TEXT, object=_TEXT, created=_WHOLE, owned_by=_TEXT)))

_AFTER: Schema = {"name": "after", "in": "query", "schema": _WHOLE, "description": "only steps after this one"}
_STATES: Schema = {
    "name": "states",
    "in": "query",
    "schema": _WHOLE,
    "description": "how many tokens; 8 if absent",
}
_NAME: Schema = {"name": "run", "in": "path", "required": True, "schema": _TEXT}

GET: dict[str, tuple[str, tuple[Schema, ...], Schema]] = {
    "/api/runs": (
        "the runs, and what is known of them without loading them",
        (),
        record(runs=many(RUN), judge=maybe(_TEXT)),
    ),
    "/api/runs/{run}/recipe": ("the recipe of a run", (_NAME,), _ANYTHING),
    "/api/runs/{run}/metrics": ("the logged steps of a run", (_NAME, _AFTER), LOGGED),
    "/api/runs/{run}/samples": ("the samples that a run wrote while it was trained", (_NAME, _AFTER), WROTE),
    "/api/operator": ("the operator T of the paper, for a number of states", (_STATES,), OPERATOR),
    "/api/health": (
        "whether the studio answers, and how much is waiting",
        (),
        record(status=_TEXT, waiting=_WHOLE, version=_TEXT),
    ),
    "/api/openapi.json": ("this description", (), _ANYTHING),
    "/v1/models": ("the runs, as OpenAI lists models", (), MODELS),
}
POST: dict[str, tuple[str, Form, Schema]] = {
    "/api/generate": ("write text; with stream, every step as an event", GENERATE, WRITTEN),
    "/api/fill": ("fill in the blanks of a text; with stream, every step as an event", FILL, WRITTEN),
    "/api/likelihood": ("the nats of each token of a text", LIKELIHOOD, SCORED),
    "/api/judge": (
        "the perplexity of a text under the judge that the studio was started with",
        JUDGE,
        record(judge=_TEXT, perplexity=maybe(_NUMBER)),
    ),
    "/v1/completions": ("write text, as OpenAI's completions", COMPLETION, COMPLETED),
}


def described(version: str) -> Schema:
    """The description."""
    paths: dict[str, Schema] = {}
    for path, (about, parameters, answer) in GET.items():
        paths[path] = {"get": {**operation(about, answer), "parameters": list(parameters)}}
    for path, (about, form, answer) in POST.items():
        body = {"required": True, "content": {"application/json": {"schema": form.schema()}}}
        paths[path] = {"post": {**operation(about, answer, "stream" in form.fields), "requestBody": body}}
    return {"openapi": "3.1.0", "info": {"title": "duality studio", "version": version}, "paths": paths}


def operation(about: str, answer: Schema, streams: bool = False) -> Schema:
    """One operation."""
    content: Schema = {"application/json": {"schema": answer}}
    if streams:
        content["text/event-stream"] = {"schema": _TEXT}
    refused = {
        "description": "one sentence that says what is allowed",
        "content": {"application/json": {"schema": ERROR}},
    }
    return {
        "summary": about,
        "responses": {"200": {"description": about, "content": content}, "4XX": refused, "503": refused},
    }
