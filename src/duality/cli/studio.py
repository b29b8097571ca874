"""The command `studio`: a page on this machine on which one watches models write."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import tyro

from duality.cli.common import Device, Flag

Sources = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def studio(
    runs: Sources = (),
    /,
    host: str = "127.0.0.1",
    port: int = 8321,
    token: str | None = None,
    judge: str | None = None,
    device: Device = "auto",
    open: Flag = False,
) -> int:
    """Open a page on which models write step by step, race, fill in, and are watched while they train.

    Args:
        runs: run folders, or folders that hold some; the folder runs if not given.
        host: the address to listen at; one that other machines can reach needs a token.
        port: the port to listen at; 0 takes a free one.
        token: what a browser or a client must send; it is a part of the address that is printed.
        judge: an autoregressive run, or the name of a language model, that scores texts in races.
        device: where to compute.
        open: open the page in the browser of this machine.
    """
    from duality.cli.console import say
    from duality.runs.overview import run_folders

    try:
        import uvicorn
        from starlette.applications import Starlette  # noqa: F401
    except ImportError:
        raise ValueError(
            "the studio needs starlette and uvicorn, which are not installed: pip install 'diffusion-duality[studio]'"
        ) from None
    from duality.studio.app import Studio, application
    from duality.studio.guard import LOOPBACK, without_port
    from duality.studio.library import Library
    from duality.studio.limits import Limits

    if without_port(host) not in (*LOOPBACK, "::1") and not token:
        raise ValueError(
            f"--host {host} can be reached from other machines: give a --token that they must know, or leave --host out"
        )
    sources = runs or (Path("runs"),)
    for source in sources:
        if not source.is_dir():
            raise ValueError(f"{source} is not a folder: give run folders, or a folder that holds some")
    found = sum(1 for source in sources for _ in run_folders(source))
    if not found:
        say(f"no run below {', '.join(map(str, sources))} yet: those that are trained there will be shown")
    limits = Limits()
    made = Studio(Library(sources, limits, device), limits, read_judge(judge, device))
    listener = listening(host, port)
    address = f"http://{host}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")
    hosts = (*LOOPBACK, host) if host in ("127.0.0.1", "localhost", "::1") else (host, *LOOPBACK)
    app = application(made, hosts, token)
    say(f"the studio is at {address} ({found} run{'s' * (found != 1)}); Ctrl-C ends it")
    if open:
        import webbrowser

        webbrowser.open(address)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)  # type: ignore[arg-type]
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        made.workers.close()
    return 0


def read_judge(name: str | None, device: str):  # type: ignore[no-untyped-def]
    """The judge of a name; None without one."""
    from duality.cli.console import say
    from duality.runs.judging import judge_named

    return None if name is None else judge_named(name, device, say)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; a port that is taken is refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host.strip("[]"), port))
        made.listen(128)
    except (OSError, OverflowError) as error:
        made.close()
        raise ValueError(f"cannot listen at {host}, port {port} ({error}): choose another --port, such as 0") from None
    return made
