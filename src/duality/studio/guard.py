"""Who may ask: the host and the origin of a request, its token; and the headers of every answer.

A page of another site can make a browser send requests to this machine, and a name of another site can be made to
point to it. So the Host header must be one that the studio was started for, an Origin must be the same, a body must say
that it is JSON (which another site cannot send without asking), and where there is a token it must be right.

What must hold: no answer but a refusal leaves before these were looked at; tokens are compared in constant time.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from duality.studio.limits import Refusal

Message = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, object]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
COOKIE = "duality-token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Guard:
    """Refuses requests that this studio was not started for; ``hosts`` are without ports."""

    app: Asgi
    refuse: Callable[[Refusal, Scope, Receive, Send], Awaitable[None]]
    hosts: tuple[str, ...]
    token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at a request, and give it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        set_cookie: list[tuple[bytes, bytes]] = []

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = message.get("headers", [])
                assert isinstance(own, list)
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*own, *more, *set_cookie]}
            await send(message)

        try:
            headers = headers_of(scope)
            check_host(headers, self.hosts)
            if self.token is not None and self.check_token(scope, headers):
                cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                set_cookie.append((b"set-cookie", cookie.encode()))
        except Refusal as refusal:
            await self.refuse(refusal, scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def check_token(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Refuse a wrong token; whether it came with the address, and the browser is to keep it."""
        assert self.token is not None
        query = scope.get("query_string", b"")
        assert isinstance(query, bytes)
        in_address = parse_qs(query.decode("latin-1")).get("token", [""])[0]
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        given = (
            headers.get("authorization", "").removeprefix("Bearer ").strip(),
            in_address,
            cookies.get(COOKIE, ""),
        )
        # all are compared, so that the time says nothing
        right = [hmac.compare_digest(each.encode("utf-8", "replace"), self.token.encode()) for each in given]
        if not any(right):
            raise Refusal(401, "this studio asks for a token: open the address that it printed, or send it as a Bearer")
        return right[1]


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request by their names in lower case."""
    found = scope.get("headers", [])
    assert isinstance(found, (list, tuple))
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in found}


def check_host(headers: Mapping[str, str], hosts: tuple[str, ...]) -> None:
    """Refuse a host that the studio was not started for, and a request that another site has caused.

    >>> check_host({"host": "localhost:8000", "origin": "http://localhost:8000"}, LOOPBACK)
    """
    host = headers.get("host", "")
    if without_port(host) not in hosts:
        raise Refusal(
            403,
            f"the host {host[:80]!r} is not one of this studio ({', '.join(hosts)}): open the address that it printed",
        )
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise Refusal(
            403, f"the origin {origin[:80]!r} is another site than this studio: open the address that it printed"
        )
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refusal(403, "another site has caused this request: open the address that the studio printed")


def without_port(host: str) -> str:
    """The name or the address of a host.

    >>> without_port("localhost:8000"), without_port("[::1]:80"), without_port("::1")
    ('localhost', '[::1]', '::1')
    """
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0] if host.count(":") == 1 else host
