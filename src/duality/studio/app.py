"""The routes of the studio: HTTP around ``library``, ``generation`` and ``completions``.

``OPERATIONS`` are the addresses of the interface: what each does, what it answers, and the function that does it. What
must hold: every route but those of the page is described, and answers what is described; tests compare them.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, cast

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import duality
from duality.diffusion.gaussian import level, level_slope
from duality.models.picture import shell
from duality.studio import completions, openapi, schemas
from duality.studio.generation import Check, Emit, Event, generate, judge_text, measure_surprisal
from duality.studio.library import Library
from duality.studio.openapi import Operation
from duality.studio.queues import Queues
from duality.studio.schemas import LIMITS, AnyForm, Cancelled, Limits, Refusal
from duality.studio.server import Guard, answer, answer_error, encode_event, list_hosts, run_server

if TYPE_CHECKING:
    from duality.evaluation.judge import Judge

_JUDGE = "the judge"  # the name of its queue; those of models are their ids
_MEDIA = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@dataclass
class Studio:
    """What the routes share."""

    library: Library
    limits: Limits = LIMITS
    judge: Judge | None = None

    def __post_init__(self) -> None:
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

        def work(emit: Emit, check: Check) -> None:
            generate(self.library.load(own.run), own, emit, check)

        if own.stream:
            return await self.queues.stream(request, own.run, work, lambda each: encode_event(each, each["type"]))
        found = await self.queues.collect(request, own.run, work)
        start, *samples, done = [{name: each[name] for name in each if name != "type"} for each in found]
        return answer({**start, **done, "samples": samples})

    async def score(self, request: Request, own: schemas.Likelihood) -> ASGIApp:
        """The nats of a text."""

        def work(emit: Emit, check: Check) -> None:
            emit(measure_surprisal(self.library.load(own.run).model, own, check))

        return answer((await self.queues.collect(request, own.run, work))[0])

    async def ask_judge(self, request: Request, own: schemas.Judgement) -> ASGIApp:
        """The perplexity of a text under the judge."""
        judge = self.judge
        if judge is None:
            raise Refusal(404, "this studio has no judge: start it with --judge and an autoregressive run, or a name")

        def work(emit: Emit, check: Check) -> None:
            emit(judge_text(judge, own.text, check))

        return answer((await self.queues.collect(request, _JUDGE, work))[0])

    async def complete(self, request: Request, own: schemas.Completion) -> ASGIApp:
        """Write text, as OpenAI's completions."""
        parts = completions.Parts(own, next(self.numbers))

        def work(emit: Emit, check: Check) -> None:
            completions.complete(self.library.load(own.model), own, emit, check)

        def show(event: Event) -> str:
            if event["type"] == "error":
                return encode_event(event)
            shown = "".join(map(encode_event, parts.split_event(event)))
            return shown + ("data: [DONE]\n\n" if event["type"] == "usage" else "")

        if own.stream:
            return await self.queues.stream(request, own.model, work, show)
        return answer(parts.make_answer(await self.queues.collect(request, own.model, work)))

    def list_models(self) -> dict[str, object]:
        """The runs, as OpenAI lists models."""
        about = {"object": "model", "created": 0, "owned_by": "duality"}
        return {"object": "list", "data": [{"id": name, **about} for name in self.library.find_runs()]}

    def routes(self) -> list[Route]:
        """All routes: those of ``OPERATIONS``, and the files of the page."""
        page = [Route(path, file, methods=["GET"]) for path, file in _page_files().items()]
        return page + [self._route(path, operation) for path, operation in OPERATIONS.items()]

    def _route(self, path: str, operation: Operation) -> Route:
        """The route of an operation: with a form it is sent a body, without one it may read files."""
        form = operation.form

        async def endpoint(request: Request) -> ASGIApp:
            if form is None:
                return answer(await asyncio.to_thread(operation.call, self, request))
            answered = operation.call(self, request, await self._read(request, form))
            return await cast(Awaitable[ASGIApp], answered)

        return Route(path.replace("{run}", "{run:path}"), endpoint, methods=["GET" if form is None else "POST"])


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
def _operator_table(states: int, points: int = 201) -> dict[str, object]:
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


OPERATIONS: dict[str, Operation] = {
    "/api/runs": Operation(
        "the runs, and what is known of them without loading them",
        openapi.RUNS,
        lambda studio, _: {"runs": studio.library.describe_runs(), "judge": studio.judge and studio.judge.name},
    ),
    "/api/runs/{run}/recipe": Operation(
        "the recipe of a run",
        openapi.OBJECT,
        lambda studio, request: studio.library.recipe(request.path_params["run"]),
        parameters=(openapi.NAME,),
    ),
    "/api/runs/{run}/metrics": Operation(
        "the logged steps of a run",
        openapi.METRICS,
        lambda studio, request: {"rows": studio.library.metrics(*_run_and_step(request))},
        parameters=(openapi.NAME, openapi.AFTER),
    ),
    "/api/runs/{run}/samples": Operation(
        "the samples that a run wrote while it was trained",
        openapi.SAMPLES,
        lambda studio, request: {"rows": studio.library.samples(*_run_and_step(request))},
        parameters=(openapi.NAME, openapi.AFTER),
    ),
    "/api/operator": Operation(
        "the operator T of the paper, for a number of states",
        openapi.OPERATOR,
        lambda _, request: _operator_table(_whole_number(request, "states", 8, 2, 1 << 20)),
        parameters=(openapi.STATES,),
    ),
    "/api/health": Operation(
        "whether the studio answers, and how much is waiting",
        openapi.HEALTH,
        lambda studio, _: {"status": "ok", "waiting": studio.queues.count_waiting(), "version": duality.__version__},
    ),
    "/api/openapi.json": Operation(
        "this description", openapi.OBJECT, lambda *_: openapi.describe_interface(duality.__version__, OPERATIONS)
    ),
    "/v1/models": Operation("the runs, as OpenAI lists models", openapi.MODELS, lambda studio, _: studio.list_models()),
    "/api/generate": Operation(
        "write text; with stream, every step as an event", openapi.WRITTEN, Studio.write, schemas.Generate
    ),
    "/api/fill": Operation(
        "fill in the blanks of a text; with stream, every step as an event",
        openapi.WRITTEN,
        Studio.write,
        schemas.Fill,
    ),
    "/api/likelihood": Operation("the nats of each token of a text", openapi.SCORED, Studio.score, schemas.Likelihood),
    "/api/judge": Operation(
        "the perplexity of a text under the judge that the studio was started with",
        openapi.JUDGED,
        Studio.ask_judge,
        schemas.Judgement,
    ),
    "/v1/completions": Operation(
        "write text, as OpenAI's completions", openapi.COMPLETED, Studio.complete, schemas.Completion
    ),
}


def _page_files() -> dict[str, Response]:
    """The files of the page, read once, by their addresses; and the empty file that it saves recordings into."""
    found = {"/share.html": Response(shell(), media_type="text/html")}
    for file in (resources.files("duality.studio") / "page").iterdir():
        media = _MEDIA.get(file.name.rpartition(".")[2])
        if media is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = Response(file.read_bytes(), media_type=media)
    return found


def make_application(studio: Studio, hosts: tuple[str, ...] | None, token: str | None = None) -> Guard:
    """The application for a server."""
    known = (Refusal, Cancelled, ClientDisconnect, HTTPException, Exception)
    app = Starlette(routes=studio.routes(), exception_handlers=dict.fromkeys(known, answer_error))
    return Guard(app, hosts, token)


def serve(studio: Studio, listener: socket.socket, host: str, token: str | None) -> None:
    """Answer until a signal comes."""
    app = make_application(studio, list_hosts(host), token)
    try:
        run_server(app, listener, studio.limits.connections, studio.queues.closing.set)
    finally:
        studio.queues.close()
