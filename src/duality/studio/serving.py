"""The server of the studio: where it listens, under which names, and how it ends.

What must hold: an address that other machines can reach is not opened without a token; when the server is told to end,
its work ends at its next step.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from types import FrameType

import uvicorn

from duality.studio.app import Studio, application
from duality.studio.guard import LOOPBACK

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{12,200}")  # what stands in an address, a header and a cookie as it is


class Server(uvicorn.Server):
    """A server that ends the work of its studio before it waits for its connections."""

    def __init__(self, studio: Studio, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.studio = studio

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to end."""
        self.studio.jobs.workers.closing.set()
        super().handle_exit(sig, frame)


def serve(studio: Studio, listener: socket.socket, host: str, token: str | None) -> None:
    """Answer until a signal comes."""
    app = application(studio, names_of(host), token)
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        limit_concurrency=studio.limits.connections,
        timeout_graceful_shutdown=3,
        server_header=False,
    )
    try:
        Server(studio, config).run(sockets=[listener])
    finally:
        studio.jobs.workers.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Refuse an address for others without a token, and a token that is no safe one."""
    if token is None and not is_loopback(host):
        raise ValueError(
            f"--host {host} can be reached from other machines: give a --token that they must know, such as "
            f"{secrets.token_urlsafe(16)}, or leave --host out"
        )
    if token is not None and not _TOKEN.fullmatch(token):
        raise ValueError(
            "--token needs 12 to 200 letters, digits or characters of -._~, so that nobody guesses it: take one such "
            f"as {secrets.token_urlsafe(16)}"
        )


def names_of(host: str) -> tuple[str, ...] | None:
    """The hosts that a request may name; None for any, where the address is that of all networks of the machine."""
    bare = host.strip("[]")
    if bare in ("", "0.0.0.0", "::"):
        return None  # the machine has names that it does not know; the token keeps others out
    own = f"[{bare}]" if ":" in bare else bare.lower()
    return LOOPBACK if own in LOOPBACK else (*LOOPBACK, own)


def address_of(host: str, port: int, token: str | None) -> str:
    """What to type into a browser.

    >>> address_of("::1", 8321, None), address_of("127.0.0.1", 80, "abc")
    ('http://[::1]:8321/', 'http://127.0.0.1:80/?token=abc')
    """
    bare = host.strip("[]")
    name = socket.gethostname() if names_of(host) is None else f"[{bare}]" if ":" in bare else bare
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; a port that is taken is refused."""
    bare = host.strip("[]")
    # with its protocol named, asyncio lets small events go at once (TCP_NODELAY); else they wait 40 ms for an answer
    made = socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((bare, port))
        made.listen(128)
    except (OSError, OverflowError) as error:
        made.close()
        raise ValueError(f"cannot listen at {host}, port {port} ({error}): choose another --port, such as 0") from None
    return made
