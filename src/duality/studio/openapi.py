"""The description of the interface, in OpenAPI 3.1; the forms of requests are those that are checked.

What must hold: every route of the application is described; a test compares them.
"""

from __future__ import annotations

from duality.studio.completion_form import COMPLETION
from duality.studio.fields import Form
from duality.studio.forms import FILL, GENERATE, JUDGE, LIKELIHOOD

_REFUSED = {
    "description": "one sentence that says what is allowed",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"error": {"type": "object", "properties": {"message": {"type": "string"}}}},
            }
        }
    },
}
_AFTER = {"name": "after", "in": "query", "schema": {"type": "integer"}, "description": "only steps after this one"}
_RUN = {"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}

GET = {
    "/api/runs": ("the runs, and what is known of them without loading them", ()),
    "/api/runs/{run}/recipe": ("the recipe of a run", (_RUN,)),
    "/api/runs/{run}/metrics": ("the logged steps of a run", (_RUN, _AFTER)),
    "/api/runs/{run}/samples": ("the samples that a run wrote while it was trained", (_RUN, _AFTER)),
    "/api/operator": ("the operator T of the paper, for a number of states", ()),
    "/api/health": ("whether the studio answers, and how much is waiting", ()),
    "/api/openapi.json": ("this description", ()),
    "/v1/models": ("the runs, as OpenAI lists models", ()),
}
POST = {
    "/api/generate": ("write text; with stream, every step as an event", GENERATE),
    "/api/fill": ("fill in the blanks of a text; with stream, every step as an event", FILL),
    "/api/likelihood": ("the nats of each token of a text", LIKELIHOOD),
    "/api/judge": ("the perplexity of a text under the judge that the studio was started with", JUDGE),
    "/v1/completions": ("write text, as OpenAI's completions", COMPLETION),
}


def described(version: str) -> dict[str, object]:
    """The description."""
    paths: dict[str, dict[str, object]] = {}
    for path, (about, parameters) in GET.items():
        paths.setdefault(path, {})["get"] = operation(about, parameters=list(parameters))
    for path, (about, form) in POST.items():
        paths.setdefault(path, {})["post"] = operation(about, form)
    return {"openapi": "3.1.0", "info": {"title": "duality studio", "version": version}, "paths": paths}


def operation(about: str, form: Form | None = None, parameters: list[object] | None = None) -> dict[str, object]:
    """One operation."""
    made: dict[str, object] = {
        "summary": about,
        "responses": {"200": {"description": about}, "4XX": _REFUSED, "503": _REFUSED},
    }
    if parameters:
        made["parameters"] = parameters
    if form is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": form.schema()}}}
    return made
