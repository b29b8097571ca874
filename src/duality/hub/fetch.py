"""Models of the Hugging Face hub, as folders of this machine.

    folder_of("owner/name")                  the newest state of the branch main
    folder_of("owner/name", "v2")            a branch, a tag, or a commit

The package `huggingface_hub` keeps what it fetches in its own cache ($HF_HOME), asks nobody if $HF_HUB_OFFLINE is 1,
shows $HF_TOKEN to a hub that asks for it, and finds the hub at $HF_ENDPOINT.

What must hold: only files of the model's own folder that hold data are fetched, the weights last, after its config.json
was accepted; nothing of them is run; a model that cannot be had is one line that says why and what to do.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PREFIX = "hf:"
CONFIG = "config.json"
FILES = ("*.json", "*.safetensors")
RELEASED_FILES = (*FILES, "*.bin", "*.txt", "*.model")  # of others, read as data too
_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)


def hub_name(source: str | Path) -> tuple[str, str | None] | None:
    """Name and revision of a model on the hub; None if the text is no such name.

    >>> hub_name("hf:owner/name@v2"), hub_name("owner/name"), hub_name("/a/folder")
    (('owner/name', 'v2'), ('owner/name', None), None)
    """
    text = str(source)
    name, _, revision = text.removeprefix(PREFIX).partition("@")
    if text.startswith(PREFIX) or _NAME.fullmatch(name):
        return name, revision or None
    return None


def accept_all(folder: Path) -> None:
    """Every config.json is right."""


def folder_of(
    name: str,
    revision: str | None = None,
    accept: Callable[[Path], None] = accept_all,
    files: Sequence[str] = FILES,
) -> Path:
    """The files of a model on the hub, fetched if they are not there; the folder has the name of their commit.

    ``accept`` may refuse the model: it is given the folder when nothing but config.json is there.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{PREFIX}{name} names no model of the Hugging Face hub: write {PREFIX}OWNER/NAME")
    folder = fetched(name, revision, [CONFIG])
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{shown(name, revision)} has no {CONFIG}: choose another model")
    accept(folder)
    return fetched(name, folder.name, list(files))


def fetched(name: str, revision: str | None, patterns: list[str]) -> Path:
    """The files of a model whose names fit the patterns; those of its subfolders are left out."""
    import huggingface_hub as hub

    with progress_on_terminals():
        try:
            found = hub.snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"])
        except Exception as error:  # of the network, of the hub, of the disk
            raise ValueError(f"{shown(name, revision)} {reason(error)}") from None
    return Path(found)


@contextmanager
def progress_on_terminals() -> Iterator[None]:
    """Show the bars of the package for the duration of a ``with`` block only if somebody sees them."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silent = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if silent:
        disable_progress_bars()
    try:
        yield
    finally:
        if silent:
            enable_progress_bars()


def reason(error: Exception) -> str:
    """Why the hub does not give something, and what to do."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return "is given to those who have accepted its conditions: do so on its page, and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "does not exist, or is private: look at the name, and set HF_TOKEN for a private model"
    if isinstance(error, errors.RevisionNotFoundError):
        return "does not have this revision: give a branch, a tag or a commit of it"
    if isinstance(error, errors.LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE:
        return "is not in the cache, and HF_HUB_OFFLINE is set: unset it where there is a network, or give a folder"
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    words = " ".join(str(cause).split())[:200] or type(cause).__name__
    return f"cannot be had ({words}): look at the network and at HF_ENDPOINT if it is set, or give a folder"


def shown(name: str, revision: str | None) -> str:
    """A model of the hub, for messages."""
    return f"the model {name} of the Hugging Face hub" + (f" at {revision}" if revision else "")
