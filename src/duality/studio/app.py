"""The routes of the studio: HTTP around ``library``, ``generation``, ``scoring`` and ``completions``.

Work is done in the thread of its model (``workers``); the events come back into the loop that answers. What must hold:
an answer that cannot be given has a status and one sentence before anything else is sent; when a client leaves, its
work ends at its next step.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import duality
from duality.studio import completions
from duality.studio.completions import COMPLETION
from duality.studio.fields import FILL, GENERATE, JUDGE, LIKELIHOOD, Form, Typed, Values, parsed
from duality.studio.generation import Emit, Event, Patience, generated
from duality.studio.guard import Guard
from duality.studio.library import Library
from duality.studio.limits import Cancelled, Limits, Refusal
from duality.studio.openapi import described
from duality.studio.scoring import surprisal
from duality.studio.share import shell
from duality.studio.workers import Task, Workers

if TYPE_CHECKING:
    from duality.evaluation.judge import Judge
    from duality.runs.model import Model
    from duality.studio.guard import Receive, Scope, Send

T = TypeVar("T")
Work = Callable[[Emit, Patience], None]
Item = Event | Exception | None  # an event, the error that ended the work, or its end

MEDIA = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass
class Studio:
    """What the routes share."""

    library: Library
    limits: Limits = field(default_factory=Limits)
    judge: Judge | None = None

    def __post_init__(self) -> None:
        self.workers, self.numbers = Workers(self.limits), itertools.count(1)

    # --- work in the thread of a model

    def begin(self, run: str, work: Work) -> tuple[Task, asyncio.Queue[Item]]:
        """Let the thread of a run work; its events, and at last its error or None, come through the queue."""
        loop, items = asyncio.get_running_loop(), asyncio.Queue[Item]()

        def put(item: Item) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(items.put_nowait, item)

        task = Task(lambda patience: work(put, patience), put)
        self.workers.add(run, task)
        return task, items

    async def first(self, request: Request, run: str, work: Work) -> tuple[Task, asyncio.Queue[Item], Event]:
        """Begin to work, and wait for the first event: an error before it has a status of its own."""
        task, items = self.begin(run, work)
        try:
            item = await until_gone(request, items.get())
        except BaseException:
            task.cancelled.set()
            raise
        if not isinstance(item, dict):
            raise item or Cancelled()
        return task, items, item

    async def all_of(self, request: Request, run: str, work: Work) -> list[Event]:
        """All events of some work."""
        task, items, event = await self.first(request, run, work)
        found = [event]
        try:
            while (item := await until_gone(request, items.get())) is not None:
                if isinstance(item, Exception):
                    raise item
                found.append(item)
        finally:
            task.cancelled.set()
        return found

    async def stream(self, request: Request, run: str, work: Work, show: Callable[[Event], str]) -> Response:
        """The events of some work as they come."""
        task, items, event = await self.first(request, run, work)

        async def lines() -> AsyncIterator[str]:
            try:
                yield show(event)
                while (item := await items.get()) is not None:
                    yield show(failed(item) if isinstance(item, Exception) else item)
            finally:
                task.cancelled.set()

        return StreamingResponse(lines(), media_type="text/event-stream")

    # --- routes

    async def form(self, request: Request, form: Form) -> Values:
        """The checked fields of a request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, f"the body is of the type {kind[:60]!r}: send application/json")
        return form.read(parsed(await self.body(request)))

    async def body(self, request: Request) -> bytes:
        """The body of a request, within its limits of size and time."""
        most, found = self.limits.body, bytearray()

        async def read() -> None:
            async for part in request.stream():
                found.extend(part)
                if len(found) > most:
                    raise Refusal(413, f"the body has more than {most:,} bytes: send less")

        try:
            await asyncio.wait_for(read(), self.limits.body_seconds)
        except asyncio.TimeoutError:
            raise Refusal(
                408, f"the body did not arrive within {self.limits.body_seconds:g} seconds: send it at once"
            ) from None
        return bytes(found)

    async def write(self, request: Request, kind: str, form: Form) -> Response:
        """Write text: as a stream of events, or as one answer."""
        values = await self.form(request, form)
        run = Typed(str).of(values, "run")
        path = as_typed(self.library.folder(run))

        def work(emit: Emit, patience: Patience) -> None:
            generated(self.library.model(run), kind, values, path, emit, patience)

        if values["stream"]:
            return await self.stream(request, run, work, lambda event: server_sent(event, str(event["type"])))
        start, *samples, done = await self.all_of(request, run, work)
        plain = [{name: value for name, value in each.items() if name != "type"} for each in (start, *samples, done)]
        return JSONResponse({**plain[0], **plain[-1], "samples": plain[1:-1]})

    async def generate(self, request: Request) -> Response:
        """POST /api/generate."""
        return await self.write(request, "generate", GENERATE)

    async def fill(self, request: Request) -> Response:
        """POST /api/fill."""
        return await self.write(request, "fill", FILL)

    async def likelihood(self, request: Request) -> Response:
        """POST /api/likelihood."""
        values = await self.form(request, LIKELIHOOD)
        run = Typed(str).of(values, "run")
        self.library.folder(run)
        (found,) = await self.all_of(request, run, lambda emit, _: emit(surprisal(self.library.model(run), values)))
        return JSONResponse(found)

    async def judged(self, request: Request) -> Response:
        """POST /api/judge."""
        judge, values = self.judge, await self.form(request, JUDGE)
        if judge is None:
            raise Refusal(404, "this studio has no judge: start it with --judge and an autoregressive run, or a name")
        text = Typed(str).of(values, "text")

        def work(emit: Emit, _: Patience) -> None:
            from duality.evaluation.judge import perplexity_of

            emit({"perplexity": perplexity_of(judge, text), "judge": judge.name})

        (found,) = await self.all_of(request, "the judge", work)
        return JSONResponse(found)

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        values = await self.form(request, COMPLETION)
        run, number = Typed(str).of(values, "model"), next(self.numbers)
        path = as_typed(self.library.folder(run))

        def work(emit: Emit, patience: Patience) -> None:
            completions.completed(self.library.model(run), values, path, emit, patience)
            if values["stream"]:
                emit({"end": True})

        def show(event: Event) -> str:
            if "end" in event:
                return "data: [DONE]\n\n"
            return server_sent(event if "error" in event else completions.answer(values, [event], number))

        if values["stream"]:
            return await self.stream(request, run, work, show)
        return JSONResponse(completions.answer(values, await self.all_of(request, run, work), number))

    async def runs(self, request: Request) -> Response:
        """GET /api/runs."""
        rows = await asyncio.to_thread(self.library.rows)
        return JSONResponse({"runs": rows, "judge": None if self.judge is None else self.judge.name})

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        found = await asyncio.to_thread(self.library.folders)
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "duality"} for name in found]
        return JSONResponse({"object": "list", "data": rows})

    async def recipe(self, request: Request) -> Response:
        """GET /api/runs/{run}/recipe."""
        return JSONResponse(self.library.recipe(request.path_params["run"]))

    async def metrics(self, request: Request) -> Response:
        """GET /api/runs/{run}/metrics."""
        rows = await asyncio.to_thread(self.library.metrics, request.path_params["run"], after(request))
        return JSONResponse({"rows": rows})

    async def samples(self, request: Request) -> Response:
        """GET /api/runs/{run}/samples."""
        rows = await asyncio.to_thread(self.library.samples, request.path_params["run"], after(request))
        return JSONResponse({"rows": rows})

    async def operator(self, request: Request) -> Response:
        """GET /api/operator."""
        return JSONResponse(operator_table(whole(request, "states", 8, 2, 1 << 20)))

    async def health(self, request: Request) -> Response:
        """GET /api/health."""
        return JSONResponse({"status": "ok", "waiting": self.workers.waiting(), "version": duality.__version__})

    async def openapi(self, request: Request) -> Response:
        """GET /api/openapi.json."""
        return JSONResponse(described(duality.__version__))

    def routes(self) -> list[Route]:
        """All routes; the files of the page are read once."""
        get: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/api/runs": self.runs,
            "/api/runs/{run:path}/recipe": self.recipe,
            "/api/runs/{run:path}/metrics": self.metrics,
            "/api/runs/{run:path}/samples": self.samples,
            "/api/operator": self.operator,
            "/api/health": self.health,
            "/api/openapi.json": self.openapi,
            "/v1/models": self.models,
        }
        post: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/api/generate": self.generate,
            "/api/fill": self.fill,
            "/api/likelihood": self.likelihood,
            "/api/judge": self.judged,
            "/v1/completions": self.complete,
        }
        made = [Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()]
        made += [Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()]
        return made + [Route(path, endpoint, methods=["GET"]) for path, endpoint in page_files().items()]


def page_files() -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """The files of the page, by their paths."""

    def route(content: bytes, media: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return Response(content, media_type=media)

        return answer

    found = {}
    for file in (resources.files("duality.studio") / "page").iterdir():
        media = MEDIA.get("." + file.name.rpartition(".")[2])
        if media is not None:
            name = "/" if file.name == "index.html" else f"/{file.name}"
            found[name] = route(file.read_bytes(), media)
    found["/share.html"] = route(shell().encode("utf-8"), "text/html")
    return found


def as_typed(folder: Path) -> str:
    """The path of a folder in a command: from the folder in which the studio was started, if it is below it."""
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


async def until_gone(request: Request, waiting: Awaitable[T]) -> T:
    """What is waited for; an error if the client leaves before."""
    wanted = asyncio.ensure_future(waiting)
    try:
        while True:
            done, _ = await asyncio.wait({wanted}, timeout=0.25)
            if done:
                return wanted.result()
            if await request.is_disconnected():
                raise Cancelled
    finally:
        wanted.cancel()


def whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query of a request."""
    text = request.query_params.get(name, str(default))
    if not text.removeprefix("-").isdecimal() or len(text) > 20 or not least <= int(text) <= most:
        raise Refusal(400, f"{name} is {text[:40]!r}: it must be a whole number from {least} to {most}")
    return int(text)


def after(request: Request) -> int:
    """The step after which rows are wanted."""
    return whole(request, "after", -1, -1, (1 << 62))


def operator_table(states: int, points: int = 201) -> Event:
    """The signal of the Gaussian diffusion, the signal T of its argmax, and the slope of T."""
    import torch

    from duality.diffusion.gaussian import level, level_slope

    gaussian = torch.linspace(0, 1, points, dtype=torch.float64)
    mu = gaussian / (1 - gaussian**2).clamp_min(1e-12).sqrt()
    inside = slice(1, -1)
    discrete = torch.cat([torch.zeros(1), level(mu[inside], states), torch.ones(1)])
    slope = level_slope(mu[inside], states) / (1 - gaussian[inside] ** 2) ** 1.5
    return {
        "states": states,
        "gaussian": [round(value, 6) for value in gaussian.tolist()],
        "discrete": [round(value, 6) for value in discrete.tolist()],
        "slope": [0.0, *(round(value, 6) for value in slope.tolist()), 0.0],
    }


def server_sent(event: Event, name: str | None = None) -> str:
    """An event of a stream."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(event, separators=(',', ':'))}\n\n"


def failed(error: Exception) -> Event:
    """An error as the last event of a stream."""
    status, message = said(error)
    return {"type": "error", "error": {"message": message, "type": "invalid_request_error", "code": status}}


def said(error: Exception) -> tuple[int, str]:
    """The status and the sentence of an error."""
    if isinstance(error, Refusal):
        return error.status, error.message
    if isinstance(error, Cancelled):
        return 499, "the client has left"
    if isinstance(error, HTTPException):
        words = {404: "there is no such address: GET /api/openapi.json lists those that exist"}
        return error.status_code, words.get(error.status_code, error.detail)
    return 500, f"a fault of the studio ({type(error).__name__}): its log has the details"


async def refused(request: Request, error: Exception) -> Response:
    """An error as an answer."""
    status, message = said(error)
    if status == 500:
        import logging

        logging.getLogger("duality.studio").error("a fault", exc_info=error)
    more = {"retry-after": "2"} if status in (429, 503) else {}
    body = {"error": {"message": message, "type": "invalid_request_error", "code": status}}
    return JSONResponse(body, status_code=status, headers=more)


def application(studio: Studio, hosts: tuple[str, ...], token: str | None = None) -> Guard:
    """The application for a server."""
    handlers = {Refusal: refused, Cancelled: refused, HTTPException: refused, Exception: refused}
    app = Starlette(routes=studio.routes(), exception_handlers=handlers)  # type: ignore[arg-type]

    async def refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        response = await refused(Request(scope), refusal)  # type: ignore[arg-type]
        await response(scope, receive, send)  # type: ignore[arg-type]

    return Guard(app, refuse, hosts, token)  # type: ignore[arg-type]


def model_of(studio: Studio, run: str) -> Model:
    """The model of a run, for tests and programs."""
    return studio.library.model(run)
