"""The files of the page, which the browser shows: read once, each at its own address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from duality.models.share import shell

Endpoint = Callable[[Request], Awaitable[Response]]

MEDIA = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def page_files() -> dict[str, Endpoint]:
    """The files of the page by their addresses, and the empty file that it saves recordings into."""
    found: dict[str, Endpoint] = {}
    for file in (resources.files("duality.studio") / "page").iterdir():
        media = MEDIA.get(file.name.rpartition(".")[2])
        if media is not None:
            found["/" if file.name == "index.html" else f"/{file.name}"] = endpoint(file.read_bytes(), media)
    found["/share.html"] = endpoint(shell().encode("utf-8"), "text/html")
    return found


def endpoint(content: bytes, media: str) -> Endpoint:
    """A file as an answer."""

    async def answer(_request: Request) -> Response:
        return Response(content, media_type=media)

    return answer
