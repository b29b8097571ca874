"""The routes of the studio: HTTP around ``library``, ``generation`` and ``completions``.

``OPERATIONS`` are the addresses of the interface: what each does, what it answers, and the function that does it;
``_describe_interface`` says the same in OpenAPI. What must hold: every route but those of the page is described, and
answers what is described; tests compare them.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import resources
from types import FrameType
from typing import TYPE_CHECKING, cast

import torch
import uvicorn
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import duality
from duality.diffusion.gaussian import level, level_slope
from duality.models.trace import shell
from duality.studio import completions, schemas
from duality.studio.generation import Event, generate, judge_text, measure_surprisal
from duality.studio.library import Library
from duality.studio.queues import Queues
from duality.studio.schemas import AnyForm, Cancelled, Form, Json, Refusal
from duality.studio.server import Address, Guard, PromptClient, answer, answer_error, encode_event

if TYPE_CHECKING:
    from duality.evaluation.judge import Judge

_JUDGE = "the judge"  # the name of its queue; those of models are their ids
_MEDIA = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@dataclass
class Studio:
    """What the routes share."""

    library: Library
    judge: Judge | None = None

    def __post_init__(self) -> None:
        self.limits = self.library.limits
        self.queues, self.numbers = Queues(self.limits), itertools.count(1)

    async def _read(self, request: Request, form: type[AnyForm]) -> AnyForm:
        """The checked fields of a request, whose body is within the limits of size and time."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, f"the body is of the type {kind[:60]!r}: send application/json")
        most, seconds, body = self.limits.body, self.limits.body_seconds, bytearray()

        async def read() -> None:
            async for part in request.stream():
                body.extend(part)
                if len(body) > most:
                    raise Refusal(413, f"the body has more than {most:,} bytes: send less")

        try:
            await asyncio.wait_for(read(), seconds)
        except asyncio.TimeoutError:
            raise Refusal(408, f"the body did not arrive within {seconds:g} seconds: send it at once") from None
        return form.read(bytes(body))

    async def write(self, request: Request, own: schemas.Generate | schemas.Fill) -> ASGIApp:
        """Write text: as a stream of events, or as one answer."""
        work = partial(generate, self.library, own)
        if own.stream:
            return await self.queues.stream(request, own.run, work, lambda each: encode_event(each, each["type"]))
        found = await self.queues.collect(request, own.run, work)
        start, *samples, done = [{name: each[name] for name in each if name != "type"} for each in found]
        return answer({**start, **done, "samples": samples})

    async def score(self, request: Request, own: schemas.Likelihood) -> ASGIApp:
        """The nats of a text."""
        work = partial(measure_surprisal, self.library, own)
        return answer((await self.queues.collect(request, own.run, work))[0])

    async def ask_judge(self, request: Request, own: schemas.Judgement) -> ASGIApp:
        """The perplexity of a text under the judge."""
        if self.judge is None:
            raise Refusal(404, "this studio has no judge: start it with --judge and an autoregressive run, or a name")
        return answer((await self.queues.collect(request, _JUDGE, partial(judge_text, self.judge, own)))[0])

    async def complete(self, request: Request, own: schemas.Completion) -> ASGIApp:
        """Write text, as OpenAI's completions."""
        work = partial(completions.complete, self.library, own, next(self.numbers))

        def show(part: Event) -> str:
            if "usage" not in part:
                return encode_event(part)
            return (encode_event(part) if own.stream_options.get("include_usage") else "") + "data: [DONE]\n\n"

        if own.stream:
            return await self.queues.stream(request, own.model, work, show)
        *parts, last = await self.queues.collect(request, own.model, work)
        return answer({**last, "choices": [choice for part in parts for choice in part["choices"]]})

    def routes(self) -> list[Route]:
        """All routes: operations; the files of the page, read once, and the empty one that it saves recordings into."""
        found = [Route("/share.html", lambda _: Response(shell(), media_type="text/html"), methods=["GET"])]
        for file in (resources.files("duality.studio") / "page").iterdir():
            media = _MEDIA.get(file.name.rpartition(".")[2])
            if media is not None:
                path = "/" if file.name == "index.html" else f"/{file.name}"
                found.append(Route(path, Response(file.read_bytes(), media_type=media), methods=["GET"]))
        return found + [self._route(path, operation) for path, operation in OPERATIONS.items()]

    def _route(self, path: str, operation: _Operation) -> Route:
        """The route of an operation: with a form it is sent a body, without one it may read files."""
        form = operation.form

        async def endpoint(request: Request) -> ASGIApp:
            if form is None:
                return answer(await asyncio.to_thread(operation.call, self, request))
            answered = operation.call(self, request, await self._read(request, form))
            return await cast(Awaitable[ASGIApp], answered)

        return Route(path.replace("{run}", "{run:path}"), endpoint, methods=["GET" if form is None else "POST"])

    def configure(self, hosts: tuple[str, ...] | None, token: str | None) -> uvicorn.Config:
        """The settings of a server of this studio."""
        return uvicorn.Config(
            make_application(self, hosts, token),
            http=cast("type[asyncio.Protocol]", partial(PromptClient, self.limits.header_seconds)),
            log_level="error",
            access_log=False,
            server_header=False,
            limit_concurrency=self.limits.connections,
            timeout_graceful_shutdown=3,
        )

    def serve(self, listener: socket.socket, address: Address) -> None:
        """Answer until a signal comes; the work ends before the server waits for its connections."""
        server = uvicorn.Server(self.configure(address.hosts, address.token))

        def end(sig: int, frame: FrameType | None) -> None:
            self.queues.closing.set()
            uvicorn.Server.handle_exit(server, sig, frame)

        server.handle_exit = end  # type: ignore[method-assign]
        try:
            server.run(sockets=[listener])
        finally:
            self.queues.close()


# --- the description of the interface


@dataclass(frozen=True)
class _Operation:
    """What an address does: its answer; the form of its body if it is sent one, else what its query may have."""

    about: str
    answer: Json
    call: Callable[..., object]
    form: type[Form] | None = None
    query: Mapping[str, str] = field(default_factory=dict)


def _describe_interface() -> Json:
    """The description in OpenAPI 3.1: what the addresses answer; the forms are those that are checked."""
    paths: Json = {}
    for path, each in OPERATIONS.items():
        content: Json = {"application/json": {"schema": each.answer}}
        answers = {"200": {"description": each.about, "content": content}, "4XX": _REFUSED, "503": _REFUSED}
        found: Json = {"summary": each.about, "responses": answers}
        if each.form is None:
            run = {"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}
            number = {"in": "query", "schema": {"type": "integer"}}
            found["parameters"] = [run] if "{run}" in path else []
            found["parameters"] += [{"name": name, "description": text, **number} for name, text in each.query.items()]
        else:
            if "stream" in each.form.model_fields:
                content["text/event-stream"] = {"schema": {"type": "string"}}
            body = {"application/json": {"schema": each.form.model_json_schema()}}
            found["requestBody"] = {"required": True, "content": body}
        paths[path] = {"get" if each.form is None else "post": found}
    return {"openapi": "3.1.0", "info": {"title": "duality studio", "version": duality.__version__}, "paths": paths}


def _record(**properties: object) -> Json:
    """An object with at least these properties: each a type, or a schema; in a list, for a list of these."""

    def schema(kind: object) -> Json:
        if isinstance(kind, list):
            return {"type": "array", "items": schema(kind[0])}
        return kind if isinstance(kind, dict) else TypeAdapter(kind).json_schema()  # type: ignore[arg-type]

    schemas = {name: schema(kind) for name, kind in properties.items()}
    return {"type": "object", "required": list(properties), "properties": schemas}


_REFUSED = {
    "description": "one sentence that says what is allowed",
    "content": {"application/json": {"schema": _record(error=_record(message=str, type=str, code=int))}},
}
_SAMPLE = _record(
    **dict.fromkeys(("text", "full_text", "tail"), str),
    **dict.fromkeys(("index", "steps", "seed"), int),
    **dict.fromkeys(("temperature", "token_entropy"), float),
    tokens=[int],
    pieces=dict,
)
_WRITTEN = _record(
    **dict.fromkeys(("run", "command"), str),
    **dict.fromkeys(("trained_steps", "num", "calls"), int),
    mask=int | None,
    seconds=float,
    samples=[_SAMPLE],
)
_TOKEN = _record(token=int, text=str, nats=float | None, stderr=float | None)
_CHOICE = _record(index=int, text=str, finish_reason=str | None, logprobs=dict | None)
_USAGE = _record(prompt_tokens=int, completion_tokens=int, total_tokens=int)
_MODEL = {"object": "model", "created": 0, "owned_by": "duality"}  # what OpenAI says of one
_AFTER = {"after": "only steps after this one"}


# --- addresses


def _whole_number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query of a request."""
    text = request.query_params.get(name, str(default))
    if not (text.removeprefix("-").isdecimal() and len(text) <= 20 and least <= int(text) <= most):
        raise Refusal(400, f"{name} is {text[:40]!r}: it must be a whole number from {least} to {most}")
    return int(text)


def _run_and_step(request: Request) -> tuple[str, int]:
    """The run of an address, and the step after which rows are wanted."""
    return request.path_params["run"], _whole_number(request, "after", -1, -1, 1 << 62)


@lru_cache(64)
def _operator_table(states: int, points: int = 201) -> Json:
    """The operator T of the paper: the signal of a Gaussian diffusion, the signal T of its argmax, the slope of T."""
    gaussian = torch.linspace(0, 1, points, dtype=torch.float64)
    inside = gaussian[1:-1]
    mu = inside / (1 - inside**2).sqrt()
    slope = level_slope(mu, states) / (1 - inside**2) ** 1.5
    return {
        "states": states,
        "gaussian": [round(value, 6) for value in gaussian.tolist()],
        "discrete": [0.0, *(round(value, 6) for value in level(mu, states).tolist()), 1.0],
        "slope": [0.0, *(round(value, 6) for value in slope.tolist()), 0.0],
    }


def _show_model(studio: Studio, request: Request) -> dict[str, object]:
    """A run, as OpenAI shows a model; one that is not there is refused."""
    run = request.path_params["run"]
    studio.library.find_run(run)
    return {"id": run, **_MODEL}


_MODEL_RECORD = _record(id=str, object=str, created=int, owned_by=str)
OPERATIONS: dict[str, _Operation] = {
    "/api/runs": _Operation(
        "the runs, and what is known of them without loading them",
        _record(runs=[_record(id=str, path=str, state=str, step=int | None, problem=str | None)], judge=str | None),
        lambda studio, _: {"runs": studio.library.describe_runs(), "judge": studio.judge and studio.judge.name},
    ),
    "/api/runs/{run}/recipe": _Operation(
        "the recipe of a run", _record(), lambda studio, request: studio.library.recipe(request.path_params["run"])
    ),
    "/api/runs/{run}/metrics": _Operation(
        "the logged steps of a run",
        _record(rows=[_record(step=int)]),
        lambda studio, request: {"rows": studio.library.metrics(*_run_and_step(request))},
        query=_AFTER,
    ),
    "/api/runs/{run}/samples": _Operation(
        "the samples that a run wrote while it was trained",
        _record(rows=[_record(step=int, texts=[str])]),
        lambda studio, request: {"rows": studio.library.samples(*_run_and_step(request))},
        query=_AFTER,
    ),
    "/api/operator": _Operation(
        "the operator T of the paper, for a number of states",
        _record(states=int, gaussian=[float], discrete=[float], slope=[float]),
        lambda _, request: _operator_table(_whole_number(request, "states", 8, 2, 1 << 20)),
        query={"states": "how many tokens; 8 if absent"},
    ),
    "/api/health": _Operation(
        "whether the studio answers, and how much is waiting",
        _record(status=str, waiting=int, version=str),
        lambda studio, _: {"status": "ok", "waiting": studio.queues.count_waiting(), "version": duality.__version__},
    ),
    "/api/openapi.json": _Operation("this description", _record(), lambda *_: _describe_interface()),
    "/v1/models": _Operation(
        "the runs, as OpenAI lists models",
        _record(object=str, data=[_MODEL_RECORD]),
        lambda studio, _: {"object": "list", "data": [{"id": name, **_MODEL} for name in studio.library.find_runs()]},
    ),
    "/v1/models/{run}": _Operation("a run, as OpenAI shows a model", _MODEL_RECORD, _show_model),
    "/api/generate": _Operation(
        "write text; with stream, every step as an event", _WRITTEN, Studio.write, schemas.Generate
    ),
    "/api/fill": _Operation(
        "fill in the blanks of a text; with stream, every step as an event", _WRITTEN, Studio.write, schemas.Fill
    ),
    "/api/likelihood": _Operation(
        "the nats of each token of a text",
        _record(run=str, kind=str, tokens=[_TOKEN], nats=float | None, bits_per_character=float | None),
        Studio.score,
        schemas.Likelihood,
    ),
    "/api/judge": _Operation(
        "the perplexity of a text under the judge that the studio was started with",
        _record(judge=str, perplexity=float | None),
        Studio.ask_judge,
        schemas.Judgement,
    ),
    "/v1/completions": _Operation(
        "write text, as OpenAI's completions",
        _record(id=str, object=str, created=int, model=str, choices=[_CHOICE], usage=_USAGE, command=str),
        Studio.complete,
        schemas.Completion,
    ),
}


# --- the application


def make_application(studio: Studio, hosts: tuple[str, ...] | None, token: str | None = None) -> Guard:
    """The application for a server."""
    known = (Refusal, Cancelled, ClientDisconnect, HTTPException, Exception)
    app = Starlette(routes=studio.routes(), exception_handlers=dict.fromkeys(known, answer_error))
    return Guard(app, hosts, token)
