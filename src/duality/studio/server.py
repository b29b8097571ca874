"""The server: where it listens and who may ask; answers in JSON, events of a stream, errors.

A page of another site can make a browser send requests to this machine, and a name of another site can be made to
point to it. So the Host header must be one that the studio was started for, an Origin must be the same, a body must say
that it is JSON (which another site cannot send without asking), and where there is a token it must be right. A link on
another site may open the page, which tells that site nothing.

What must hold: no answer but a refusal leaves before these were looked at; tokens are compared in constant time; an
address that other machines can reach is not opened without a token; when the server is told to end, its work ends at
its next step. Whatever happens, an answer is JSON that every program reads, and an error has a status and one sentence.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from duality.files.atomic import json_text
from duality.studio.schemas import Cancelled, Json, Refusal

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_COOKIE = "duality-token"  # and the port, as a browser has one jar for all ports of a machine
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{12,200}")  # what stands in an address, a header and a cookie as it is
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)


# --- answers


def _encode(value: object) -> str:
    """A value as JSON in which a number that is not finite is null."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return json_text(value)


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as an answer."""
    return Response(_encode(value), status, headers, "application/json")


def encode_event(event: Mapping[str, object], name: str | None = None) -> str:
    """An event of a stream."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {_encode(event)}\n\n"


def describe_error(error: Exception) -> Json:
    """An error in the form of OpenAI, as the last event of a stream."""
    status, message = 500, f"a fault of the studio ({type(error).__name__}): it has printed the details"
    if isinstance(error, Refusal):
        status, message = error.status, error.message
    elif isinstance(error, (Cancelled, ClientDisconnect)):
        status, message = 499, "the client has left"
    elif isinstance(error, HTTPException):
        allowed = (error.headers or {}).get("Allow", "another one")
        known = {
            404: "there is no such address: GET /api/openapi.json lists those that exist",
            405: f"this address has another method: use {allowed}",
        }
        status, message = error.status_code, known.get(error.status_code, str(error.detail))
    elif isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        status, message = 503, "there is not enough memory: ask for fewer samples or tokens"
    else:
        logging.getLogger("duality.studio").error("a fault of the studio", exc_info=error)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"type": "error", "error": {"message": message, "type": kind, "param": None, "code": status}}


async def answer_error(_request: Request | None, error: Exception) -> Response:
    """An error as an answer."""
    details = describe_error(error)["error"]
    more = {"retry-after": "2"} if details["code"] in (429, 503) else {}
    return answer({"error": details}, details["code"], more)


# --- who may ask


@dataclass(frozen=True)
class Guard:
    """Refuses requests that this studio was not started for; ``hosts`` are without ports, and None allows any."""

    app: ASGIApp
    hosts: tuple[str, ...] | None
    token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at a request, and give it on."""
        if scope["type"] != "http":  # the start and the end of the server; there are no web sockets
            await self.app(scope, receive, send)
            return
        app, more = self.app, {**_HEADERS}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(more)
            await send(message)

        try:
            asked = HTTPConnection(scope)
            self._check_site(asked.headers, opens_page=scope["method"] == "GET" and scope["path"] == "/")
            if self.token is not None:
                bearer = asked.headers.get("authorization", "").removeprefix("Bearer ").strip()
                port = re.search(r":(\d{1,5})$", asked.headers.get("host", ""))
                cookie = _COOKIE if port is None else f"{_COOKIE}-{port[1]}"
                given = (bearer, asked.query_params.get("token", ""), asked.cookies.get(cookie, ""))
                # all are compared, so that the time says nothing
                right = [hmac.compare_digest(each.encode("utf-8", "replace"), self.token.encode()) for each in given]
                if not any(right):
                    remedy = "open the address that it printed, or send it as a Bearer"
                    raise Refusal(401, f"this studio asks for a token: {remedy}")
                if right[1]:  # it came with the address, and the browser is to keep it
                    more["set-cookie"] = f"{cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        except Refusal as refusal:
            app = await answer_error(None, refusal)
        await app(scope, receive, send_with_headers)

    def _check_site(self, headers: Mapping[str, str], opens_page: bool) -> None:
        """Refuse a host that the studio was not started for, and a request that a page of another site has caused."""
        remedy = "open the address that it printed"
        host, origin, site = (headers.get(name) for name in ("host", "origin", "sec-fetch-site"))
        name = re.sub(r"^(\[.*?\]|[^:]*)(:[^:]*)?$", r"\1", host or "").lower()  # without its port
        if self.hosts is not None and name not in self.hosts:
            names = ", ".join(self.hosts)
            raise Refusal(403, f"the host {(host or '')[:80]!r} is not one of this studio ({names}): {remedy}")
        if origin is not None and origin.partition("://")[2] != (host or ""):
            raise Refusal(403, f"the origin {origin[:80]!r} is another site than this studio: {remedy}")
        navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if site not in (None, "none", "same-origin") and not (opens_page and navigates):
            raise Refusal(403, "another site has caused this request: open the address that the studio printed")


class PromptClient(HttpToolsProtocol):
    """A connection of a client, which is closed when the header of its next request is begun and not whole in time."""

    def __init__(self, seconds: float, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self._seconds = seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there, and is to send a request."""
        super().connection_made(transport)
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        """More of a request; behind an answer it may be the beginning of another one."""
        super().data_received(data)
        if self.cycle is not None and self.cycle.response_complete:
            self._expect_header()

    def _expect_header(self, before: object = None, waited: bool = False) -> None:
        """Close the connection if there is no header until then: each has another ``cycle``."""
        if not waited:
            self.loop.call_later(self._seconds, self._expect_header, self.cycle, True)
        elif self.cycle is before:
            self.transport.close()


# --- where it listens


@dataclass(frozen=True)
class Address:
    """Where a studio listens, and the token that others must know.

    An address for others without a token is refused, and a token that is no safe one.
    """

    host: str
    port: int
    token: str | None = None

    def __post_init__(self) -> None:
        such = secrets.token_urlsafe(16)
        if set("[]") & set(self._bare) or (self._bare != self.host and ":" not in self._bare):
            raise ValueError(f"--host {self.host}: brackets stand around an IPv6 address alone, as in [::1]")
        try:
            alone = self.host == "localhost" or ipaddress.ip_address(self._bare).is_loopback
        except ValueError:  # another name
            alone = False
        if self.token is None and not alone:
            raise ValueError(
                f"--host {self.host} can be reached from other machines: give a --token that they must know, such as "
                f"{such}, or leave --host out"
            )
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ValueError(
                "--token needs 12 to 200 letters, digits or characters of -._~, so that nobody guesses it: take one "
                f"such as {such}"
            )

    @property
    def _bare(self) -> str:
        """The host without the brackets of an IPv6 address."""
        return self.host[1:-1] if self.host[:1] + self.host[-1:] == "[]" else self.host

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The hosts that a request may name; None for any, where the address is that of all networks of the machine."""
        if self._bare in ("", "0.0.0.0", "::"):
            return None  # the machine has names that it does not know; the token keeps others out
        own = f"[{self._bare}]" if ":" in self._bare else self._bare.lower()
        return LOOPBACK if own in LOOPBACK else (*LOOPBACK, own)

    def url(self, port: int) -> str:
        """What to type into a browser, where ``port`` is the one that was taken.

        >>> Address("::1", 0).url(8321), Address("127.0.0.1", 0, "abc-def-ghi-jkl").url(80)
        ('http://[::1]:8321/', 'http://127.0.0.1:80/?token=abc-def-ghi-jkl')
        """
        name = f"[{self._bare}]" if ":" in self._bare else self._bare
        name = socket.gethostname() if self.hosts is None else name
        return f"http://{name}:{port}/" + (f"?token={self.token}" if self.token else "")

    def listen(self) -> socket.socket:
        """A socket that listens; a port that is taken is refused."""
        family = socket.AF_INET6 if ":" in self._bare else socket.AF_INET
        # with its protocol named, asyncio sends small events at once (TCP_NODELAY); else they wait 40 ms for an answer
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((self._bare, self.port))
            made.listen(128)
        except (OSError, OverflowError) as error:
            made.close()
            raise ValueError(
                f"cannot listen at {self.host}, port {self.port} ({error}): choose another --port, such as 0"
            ) from None
        return made
