"""Who may ask: the host and the origin of a request, its token; and the headers of every answer.

A page of another site can make a browser send requests to this machine, and a name of another site can be made to
point to it. So the Host header must be one that the studio was started for, an Origin must be the same, a body must say
that it is JSON (which another site cannot send without asking), and where there is a token it must be right. A link on
another site may open the page, which tells that site nothing.

What must hold: no answer but a refusal leaves before these were looked at; tokens are compared in constant time.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duality.studio.limits import Refusal

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
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_HEADERS = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in HEADERS.items()]


@dataclass(frozen=True)
class Guard:
    """Refuses requests that this studio was not started for; ``hosts`` are without ports, and None allows any."""

    app: ASGIApp
    refuse: Callable[[Refusal, Scope, Receive, Send], Awaitable[None]]
    hosts: tuple[str, ...] | None
    token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at a request, and give it on."""
        if scope["type"] != "http":  # the start and the end of the server; there are no web sockets
            await self.app(scope, receive, send)
            return
        cookie: list[tuple[bytes, bytes]] = []

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *_HEADERS, *cookie]}
            await send(message)

        try:
            headers = headers_of(scope)
            check_host(headers, self.hosts)
            check_site(headers, opens_page=scope["method"] == "GET" and scope["path"] == "/")
            if self.token is not None and self.check_token(scope, headers, self.token):
                text = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                cookie.append((b"set-cookie", text.encode("latin-1")))
        except Refusal as refusal:
            await self.refuse(refusal, scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def check_token(self, scope: Scope, headers: Mapping[str, str], token: str) -> bool:
        """Refuse a wrong token; whether it came with the address, and the browser is to keep it."""
        in_address = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
        # all are compared, so that the time says nothing
        given = (bearer, in_address, cookies.get(COOKIE, ""))
        right = [hmac.compare_digest(each.encode("utf-8", "replace"), token.encode("utf-8")) for each in given]
        if not any(right):
            raise Refusal(401, "this studio asks for a token: open the address that it printed, or send it as a Bearer")
        return right[1]


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request by their names in lower case; of several with one name, the last."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def check_host(headers: Mapping[str, str], hosts: tuple[str, ...] | None) -> None:
    """Refuse a host that the studio was not started for.

    >>> check_host({"host": "localhost:8000"}, LOOPBACK)
    """
    host = headers.get("host", "")
    if hosts is not None and without_port(host).lower() not in hosts:
        raise Refusal(
            403,
            f"the host {host[:80]!r} is not one of this studio ({', '.join(hosts)}): open the address that it printed",
        )


def check_site(headers: Mapping[str, str], opens_page: bool = False) -> None:
    """Refuse a request that a page of another site has caused.

    >>> check_site({"host": "localhost:8000", "origin": "http://localhost:8000"})
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise Refusal(
            403, f"the origin {origin[:80]!r} is another site than this studio: open the address that it printed"
        )
    link = opens_page and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not link:
        raise Refusal(403, "another site has caused this request: open the address that the studio printed")


def without_port(host: str) -> str:
    """The name or the address of a host.

    >>> without_port("localhost:8000"), without_port("[::1]:80"), without_port("::1")
    ('localhost', '[::1]', '::1')
    """
    if host.startswith("[") and "]" in host:
        return host[: host.index("]") + 1]
    return host.partition(":")[0] if host.count(":") == 1 else host
