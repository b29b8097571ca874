"""The routes of the studio: HTTP around ``library``, ``generation``, ``scoring`` and ``completions``."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import duality
from duality.studio import completions
from duality.studio.answers import answered, refused, server_sent
from duality.studio.completion_form import COMPLETION
from duality.studio.fields import Form, Typed, Values, parsed
from duality.studio.forms import FILL, GENERATE, JUDGE, LIKELIHOOD
from duality.studio.generation import Emit, Event, generated
from duality.studio.guard import Guard
from duality.studio.jobs import Jobs
from duality.studio.library import Library
from duality.studio.limits import Cancelled, Limits, Refusal
from duality.studio.openapi import described
from duality.studio.operator_table import operator_table
from duality.studio.page_files import page_files
from duality.studio.patience import Patience
from duality.studio.scoring import judged, surprisal

if TYPE_CHECKING:
    from duality.evaluation.judge import Judge

Endpoint = Callable[[Request], Awaitable[ASGIApp]]

_JUDGE = "the judge"  # the name of its thread; those of models are paths


@dataclass
class Studio:
    """What the routes share."""

    library: Library
    limits: Limits = field(default_factory=Limits)
    judge: Judge | None = None

    def __post_init__(self) -> None:
        self.jobs, self.numbers = Jobs(self.limits), itertools.count(1)

    # --- reading a request

    async def form(self, request: Request, form: Form) -> Values:
        """The checked fields of a request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, f"the body is of the type {kind[:60]!r}: send application/json")
        return form.read(parsed(await self.body(request)))

    async def body(self, request: Request) -> bytes:
        """The body of a request, within its limits of size and time."""
        most, seconds, found = self.limits.body, self.limits.body_seconds, bytearray()

        async def read() -> None:
            async for part in request.stream():
                found.extend(part)
                if len(found) > most:
                    raise Refusal(413, f"the body has more than {most:,} bytes: send less")

        try:
            await asyncio.wait_for(read(), seconds)
        except asyncio.TimeoutError:
            raise Refusal(408, f"the body did not arrive within {seconds:g} seconds: send it at once") from None
        return bytes(found)

    async def run_of(self, values: Values, name: str) -> tuple[str, str]:
        """The run that a request names, and the name of its thread."""
        run = Typed(str).of(values, name)
        known = self.library.listed(run)  # whether it is still there is seen when it is loaded
        return run, str(known or await asyncio.to_thread(self.library.folder, run))

    # --- writing and scoring

    async def write(self, request: Request, kind: str, form: Form) -> ASGIApp:
        """Write text: as a stream of events, or as one answer."""
        values = await self.form(request, form)
        run, thread = await self.run_of(values, "run")

        def work(emit: Emit, patience: Patience) -> None:
            generated(self.library.loaded(run), kind, values, emit, patience)

        if values["stream"]:
            return await self.jobs.stream(request, thread, work, lambda event: server_sent(event, str(event["type"])))
        found = await self.jobs.all_of(request, thread, work)
        start, *samples, done = [{name: each[name] for name in each if name != "type"} for each in found]
        return answered({**start, **done, "samples": samples})

    async def generate(self, request: Request) -> ASGIApp:
        """POST /api/generate."""
        return await self.write(request, "generate", GENERATE)

    async def fill(self, request: Request) -> ASGIApp:
        """POST /api/fill."""
        return await self.write(request, "fill", FILL)

    async def likelihood(self, request: Request) -> ASGIApp:
        """POST /api/likelihood."""
        values = await self.form(request, LIKELIHOOD)
        run, thread = await self.run_of(values, "run")

        def work(emit: Emit, patience: Patience) -> None:
            emit(surprisal(self.library.loaded(run).model, values, patience))

        (found,) = await self.jobs.all_of(request, thread, work)
        return answered(found)

    async def judged(self, request: Request) -> ASGIApp:
        """POST /api/judge."""
        judge, values = self.judge, await self.form(request, JUDGE)
        if judge is None:
            raise Refusal(404, "this studio has no judge: start it with --judge and an autoregressive run, or a name")
        text = Typed(str).of(values, "text")
        (found,) = await self.jobs.all_of(request, _JUDGE, lambda emit, patience: emit(judged(judge, text, patience)))
        return answered(found)

    async def complete(self, request: Request) -> ASGIApp:
        """POST /v1/completions."""
        values = await self.form(request, COMPLETION)
        run, thread = await self.run_of(values, "model")
        head = completions.Head(run, next(self.numbers))

        def work(emit: Emit, patience: Patience) -> None:
            completions.completed(self.library.loaded(run), values, emit, patience)

        def show(event: Event) -> str:
            if "error" in event:
                return server_sent(event)
            parts = [server_sent(each) for each in completions.chunks(head, values, event)]
            return "".join(parts) + ("data: [DONE]\n\n" if event["type"] == "usage" else "")

        if values["stream"]:
            return await self.jobs.stream(request, thread, work, show)
        return answered(completions.answer(head, await self.jobs.all_of(request, thread, work)))

    # --- looking

    async def runs(self, request: Request) -> ASGIApp:
        """GET /api/runs."""
        rows = await asyncio.to_thread(self.library.rows)
        return answered({"runs": rows, "judge": None if self.judge is None else self.judge.name})

    async def models(self, request: Request) -> ASGIApp:
        """GET /v1/models."""
        found = await asyncio.to_thread(self.library.folders)
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "duality"} for name in found]
        return answered({"object": "list", "data": rows})

    async def recipe(self, request: Request) -> ASGIApp:
        """GET /api/runs/{run}/recipe."""
        return answered(await asyncio.to_thread(self.library.recipe, request.path_params["run"]))

    async def metrics(self, request: Request) -> ASGIApp:
        """GET /api/runs/{run}/metrics."""
        rows = await asyncio.to_thread(self.library.metrics, request.path_params["run"], after(request))
        return answered({"rows": rows})

    async def samples(self, request: Request) -> ASGIApp:
        """GET /api/runs/{run}/samples."""
        rows = await asyncio.to_thread(self.library.samples, request.path_params["run"], after(request))
        return answered({"rows": rows})

    async def operator(self, request: Request) -> ASGIApp:
        """GET /api/operator."""
        return answered(await asyncio.to_thread(operator_table, whole(request, "states", 8, 2, 1 << 20)))

    async def health(self, request: Request) -> ASGIApp:
        """GET /api/health."""
        return answered({"status": "ok", "waiting": self.jobs.workers.waiting(), "version": duality.__version__})

    async def openapi(self, request: Request) -> ASGIApp:
        """GET /api/openapi.json."""
        return answered(described(duality.__version__))

    def routes(self) -> list[Route]:
        """All routes."""
        get: dict[str, Endpoint] = {
            "/api/runs": self.runs,
            "/api/runs/{run:path}/recipe": self.recipe,
            "/api/runs/{run:path}/metrics": self.metrics,
            "/api/runs/{run:path}/samples": self.samples,
            "/api/operator": self.operator,
            "/api/health": self.health,
            "/api/openapi.json": self.openapi,
            "/v1/models": self.models,
            **page_files(),
        }
        post: dict[str, Endpoint] = {
            "/api/generate": self.generate,
            "/api/fill": self.fill,
            "/api/likelihood": self.likelihood,
            "/api/judge": self.judged,
            "/v1/completions": self.complete,
        }
        made = [Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()]
        return made + [Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()]


def whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query of a request."""
    text = request.query_params.get(name, str(default))
    if not (text.removeprefix("-").isdecimal() and len(text) <= 20 and least <= int(text) <= most):
        raise Refusal(400, f"{name} is {text[:40]!r}: it must be a whole number from {least} to {most}")
    return int(text)


def after(request: Request) -> int:
    """The step after which rows are wanted."""
    return whole(request, "after", -1, -1, (1 << 62))


def application(studio: Studio, hosts: tuple[str, ...] | None, token: str | None = None) -> Guard:
    """The application for a server."""
    known = (Refusal, Cancelled, ClientDisconnect, HTTPException, Exception)
    app = Starlette(routes=studio.routes(), exception_handlers=dict.fromkeys(known, refused))

    async def refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        response = await refused(Request(scope), refusal)
        await response(scope, receive, send)

    return Guard(app, refuse, hosts, token)
