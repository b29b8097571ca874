"""The routes of the studio: HTTP around ``library``, ``generation``, ``scoring`` and ``completions``."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import resources
from typing import TYPE_CHECKING

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
from duality.studio import completions, schemas
from duality.studio.generation import Check, Emit, Event, generate
from duality.studio.library import Library
from duality.studio.openapi import describe_interface
from duality.studio.queues import Queues
from duality.studio.schemas import AnyForm, Cancelled, Limits, Refusal
from duality.studio.scoring import judge_text, measure_surprisal
from duality.studio.server import Guard, answer, error_answer, host_names, run_server, server_sent_event

if TYPE_CHECKING:
    from duality.evaluation.judge import Judge

_Endpoint = Callable[[Request], Awaitable[ASGIApp]]

_JUDGE = "the judge"  # the name of its thread; those of models are paths
_MEDIA = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@dataclass
class Studio:
    """What the routes share."""

    library: Library
    limits: Limits = field(default_factory=Limits)
    judge: Judge | None = None

    def __post_init__(self) -> None:
        self.queues, self.numbers = Queues(self.limits), itertools.count(1)

    # --- reading a request

    async def _read(self, request: Request, form: type[AnyForm]) -> AnyForm:
        """The checked fields of a request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, f"the body is of the type {kind[:60]!r}: send application/json")
        return form.read(await self._read_body(request))

    async def _read_body(self, request: Request) -> bytes:
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

    async def _thread_of(self, run: str) -> str:
        """The name of the thread of a run."""
        known = self.library.known_folder(run)  # whether it is still there is seen when it is loaded
        return str(known or await asyncio.to_thread(self.library.folder, run))

    # --- writing and scoring

    async def _write(self, request: Request, form: type[schemas.Generate] | type[schemas.Fill]) -> ASGIApp:
        """Write text: as a stream of events, or as one answer."""
        own = await self._read(request, form)
        thread = await self._thread_of(own.run)

        def work(emit: Emit, check: Check) -> None:
            generate(self.library.load(own.run), own, emit, check)

        if own.stream:
            return await self.queues.stream(request, thread, work, lambda each: server_sent_event(each, each["type"]))
        found = await self.queues.collect(request, thread, work)
        start, *samples, done = [{name: each[name] for name in each if name != "type"} for each in found]
        return answer({**start, **done, "samples": samples})

    async def _score(self, request: Request) -> ASGIApp:
        """The nats of a text."""
        own = await self._read(request, schemas.Likelihood)

        def work(emit: Emit, check: Check) -> None:
            emit(measure_surprisal(self.library.load(own.run).model, own, check))

        return answer((await self.queues.collect(request, await self._thread_of(own.run), work))[0])

    async def _ask_judge(self, request: Request) -> ASGIApp:
        """The perplexity of a text under the judge."""
        judge, own = self.judge, await self._read(request, schemas.Judgement)
        if judge is None:
            raise Refusal(404, "this studio has no judge: start it with --judge and an autoregressive run, or a name")

        def work(emit: Emit, check: Check) -> None:
            emit(judge_text(judge, own.text, check))

        return answer((await self.queues.collect(request, _JUDGE, work))[0])

    async def _complete(self, request: Request) -> ASGIApp:
        """Write text, as OpenAI's completions."""
        own = await self._read(request, schemas.Completion)
        thread = await self._thread_of(own.model)
        head = completions.Head(own.model, next(self.numbers))

        def work(emit: Emit, check: Check) -> None:
            completions.complete(self.library.load(own.model), own, emit, check)

        def show(event: Event) -> str:
            if "error" in event:
                return server_sent_event(event)
            parts = [server_sent_event(each) for each in completions.chunks(head, own, event)]
            return "".join(parts) + ("data: [DONE]\n\n" if event["type"] == "usage" else "")

        if own.stream:
            return await self.queues.stream(request, thread, work, show)
        return answer(completions.whole_answer(head, await self.queues.collect(request, thread, work)))

    # --- looking

    def _list_runs(self) -> dict[str, object]:
        """The runs, and the name of the judge."""
        return {"runs": self.library.rows(), "judge": None if self.judge is None else self.judge.name}

    def _list_models(self) -> dict[str, object]:
        """The runs, as OpenAI lists models."""
        about = {"object": "model", "created": 0, "owned_by": "duality"}
        return {"object": "list", "data": [{"id": name, **about} for name in self.library.folders()]}

    def routes(self) -> list[Route]:
        """All routes: those that ``openapi.OPERATIONS`` describes, and the files of the page."""
        library, version = self.library, duality.__version__
        look: dict[str, Callable[[Request], object]] = {
            "/api/runs": lambda _: self._list_runs(),
            "/api/runs/{run}/recipe": lambda request: library.recipe(request.path_params["run"]),
            "/api/runs/{run}/metrics": lambda request: {"rows": library.metrics(*_run_and_step(request))},
            "/api/runs/{run}/samples": lambda request: {"rows": library.samples(*_run_and_step(request))},
            "/api/operator": lambda request: _operator_table(_whole_number(request, "states", 8, 2, 1 << 20)),
            "/api/health": lambda _: {"status": "ok", "waiting": self.queues.waiting(), "version": version},
            "/api/openapi.json": lambda _: describe_interface(version),
            "/v1/models": lambda _: self._list_models(),
        }
        work: dict[str, _Endpoint] = {
            "/api/generate": partial(self._write, form=schemas.Generate),
            "/api/fill": partial(self._write, form=schemas.Fill),
            "/api/likelihood": self._score,
            "/api/judge": self._ask_judge,
            "/v1/completions": self._complete,
        }
        get = _page_files() | {path.replace("{run}", "{run:path}"): _look(function) for path, function in look.items()}
        found = [Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()]
        return found + [Route(path, endpoint, methods=["POST"]) for path, endpoint in work.items()]


def _look(function: Callable[[Request], object]) -> _Endpoint:
    """An endpoint that answers with what a function finds, which may read files."""

    async def endpoint(request: Request) -> Response:
        return answer(await asyncio.to_thread(function, request))

    return endpoint


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


def _page_files() -> dict[str, _Endpoint]:
    """The files of the page, read once, by their addresses; and the empty file that it saves recordings into."""

    def endpoint(content: bytes, media: str) -> _Endpoint:
        async def send_file(_request: Request) -> Response:
            return Response(content, media_type=media)

        return send_file

    found = {"/share.html": endpoint(shell().encode("utf-8"), "text/html")}
    for file in (resources.files("duality.studio") / "page").iterdir():
        media = _MEDIA.get(file.name.rpartition(".")[2])
        if media is not None:
            found["/" if file.name == "index.html" else f"/{file.name}"] = endpoint(file.read_bytes(), media)
    return found


def application(studio: Studio, hosts: tuple[str, ...] | None, token: str | None = None) -> Guard:
    """The application for a server."""
    known = (Refusal, Cancelled, ClientDisconnect, HTTPException, Exception)
    app = Starlette(routes=studio.routes(), exception_handlers=dict.fromkeys(known, error_answer))
    return Guard(app, hosts, token)


def serve(studio: Studio, listener: socket.socket, host: str, token: str | None) -> None:
    """Answer until a signal comes."""
    app = application(studio, host_names(host), token)
    try:
        run_server(app, listener, studio.limits.connections, studio.queues.closing.set)
    finally:
        studio.queues.close()
