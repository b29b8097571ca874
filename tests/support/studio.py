"""A studio for tests: in this process behind a real socket, or called without one."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from duality.studio.app import Studio
from duality.studio.library import Library
from duality.studio.schemas import Limits
from duality.studio.server import LOOPBACK, Address

Json = Any


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The sentence of an error."""
        found = self.json["error"]["message"]
        assert isinstance(found, str)
        return found

    @property
    def events(self) -> list[Json]:
        """The events of a stream."""
        parts = self.body.decode("utf-8").split("\n\n")
        lines = [line for part in parts for line in part.split("\n") if line.startswith("data: ")]
        return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


@dataclass(frozen=True)
class Served:
    """A studio that listens."""

    studio: Studio
    port: int

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None, seconds: float = 60
    ) -> Answer:
        """Send a request, and wait for the whole answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            own = {"content-type": "application/json"} if body is not None else {}
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, {**own, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Answer:
        return self.send("GET", path, **more)

    def post(self, path: str, body: object, **more: Any) -> Answer:
        return self.send("POST", path, body, **more)

    def raw(self, data: bytes) -> socket.socket:
        """A connection over which these bytes were sent."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        made.sendall(data)
        return made


def posted(path: str, body: object) -> bytes:
    """The bytes of a request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def studio_of(source: Path, limits: Limits | None = None, **more: Any) -> Studio:
    """A studio that shows the runs below a folder."""
    return Studio(Library([source], limits or Limits(), "cpu"), **more)


@contextmanager
def served(studio: Studio, hosts: tuple[str, ...] | None = LOOPBACK, token: str | None = None) -> Iterator[Served]:
    """The studio behind a real socket, for the duration of a ``with`` block."""
    listener = Address("127.0.0.1", 0).listen()
    server = uvicorn.Server(studio.configure(hosts, token))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield Served(studio, listener.getsockname()[1])
    finally:
        server.should_exit = True
        studio.queues.close()
        thread.join(10)
        listener.close()


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.01)


def asked(app: Any, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    """The answer of an application that is called without a socket."""
    path, _, query = path.partition("?")
    given = {"host": "127.0.0.1", "content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query.encode("utf-8", "replace"),
        "headers": [(name.encode("latin-1"), value.encode("utf-8", "replace")) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
    }
    sent: list[dict[str, Any]] = []

    async def call() -> None:
        given_up = asyncio.Event()
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await given_up.wait()  # the client stays until it has the answer
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(scope, receive, send)

    asyncio.run(call())
    head = sent[0]
    return Answer(
        head["status"],
        {name.decode(): value.decode() for name, value in head["headers"]},
        b"".join(message.get("body", b"") for message in sent[1:]),
    )
