"""The command `studio`: a page on this machine on which one watches models write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from duality.cli.console import say
from duality.cli.options import Device, Flag

if TYPE_CHECKING:
    from duality.hub.fetch import ModelSource


def studio(
    runs: Annotated[tuple[Path, ...], Positional, arg(metavar="RUN")] = (),
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
        runs: run folders, folders that hold some, folders of `duality publish`, or models of the Hugging Face hub
            (hf:OWNER/NAME[@REVISION]); the folder runs if not given.
        host: the address to listen at; one that other machines can reach needs a token.
        port: the port to listen at; 0 takes a free one.
        token: what a browser or a client must send; it is a part of the address that is printed.
        judge: an autoregressive run, or the name of a language model, that scores texts in races.
        open: open the page in the browser of this machine.
    """
    from duality.runs.listing import run_folders

    try:
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ValueError(
            "the studio needs pydantic, starlette and uvicorn, which are not installed: pip install "
            "'diffusion-duality[studio]'"
        ) from None
    from duality.evaluation.judge import find_judge
    from duality.studio import app, library, server

    folders, models = _find_sources(runs or (Path("runs"),))
    found = sum(1 for source in folders for _ in run_folders(source)) + len(models)
    server.check_token(host, token)
    with server.listen(host, port) as listener:
        shelf = library.Library(folders, device=device, models=models)
        made = app.Studio(shelf, judge=None if judge is None else find_judge(judge, device, say))
        address = server.format_address(host, listener.getsockname()[1], token)
        say(f"the studio is at {address} ({found} run{'s' * (found != 1)}, and those to come); Ctrl-C ends it")
        if open:
            import webbrowser

            webbrowser.open(address)
        app.serve(made, listener, host, token)
    return 0


def _find_sources(sources: Sequence[Path]) -> tuple[list[Path], list[ModelSource]]:
    """Folders in which runs are looked for, and models alone, which are fetched if the hub has them."""
    from duality.hub.fetch import model_source
    from duality.hub.package import is_ours, read_config

    folders: list[Path] = []
    models: list[ModelSource] = []
    for source in sources:
        if str(source).startswith("hf:") or is_ours(source):
            found = model_source(source)
            read_config(found.folder)
            models.append(found)
        elif source.is_dir():
            folders.append(source)
        else:
            raise ValueError(
                f"{source} is not a folder: give run folders, a folder that holds some, or hf:OWNER/NAME of the hub"
            )
    return folders, models
