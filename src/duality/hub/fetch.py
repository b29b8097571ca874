"""What a user names as a model, as a folder of this machine: a run, a model alone, or a model of the Hugging Face hub.

    runs/demo               a folder; a folder that exists is never looked for on the hub
    owner/name              a model of the hub, if there is no folder of this name nor one called owner
    hf:owner/name@v2        a model of the hub, at a branch, a tag or a commit

The package `huggingface_hub` keeps what it fetches in its own cache ($HF_HOME), makes no request if $HF_HUB_OFFLINE is
1, shows $HF_TOKEN to a hub that asks for it, and finds the hub at $HF_ENDPOINT.

What must hold: only files of the model's own folder that hold data are fetched, the weights last, after its config.json
was accepted; nothing of them is run; a model that cannot be fetched is one line that says why and what to do.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PREFIX = "hf:"
_CONFIG = "config.json"
RELEASED_FILES = ("*.json", "*.safetensors", "*.bin", "*.txt", "*.model")  # of others, read as data too
_FILES = ("*.json", "*.safetensors")
_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class ModelSource:
    """A folder of this machine with a model; ``place`` is what it is called, ``commit`` that of the hub."""

    folder: Path
    place: str
    commit: str | None = None

    @property
    def pinned(self) -> Path:
        """What names the same model again, also when the hub has a newer one."""
        return Path(f"{self.place}@{self.commit}") if self.commit else self.folder


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


def model_source(source: Path | str, revision: str | None = None) -> ModelSource:
    """The folder of a model, fetched from the hub if it is there; ``revision`` belongs to the hub."""
    path, named = Path(source).expanduser(), hub_name(source)
    explicit = str(source).startswith(PREFIX)
    if named is None or (path.exists() and not explicit):
        if revision is not None:
            raise ValueError(
                f"revision {revision!r} of {source}, which is a path: only models of the Hugging Face hub have "
                f"revisions; leave it out, or write {PREFIX}OWNER/NAME"
            )
        return ModelSource(path, str(path))
    name, own = named
    if not explicit and path.parent.is_dir():  # a mistyped path is not sent to the hub
        raise ValueError(
            f"{source} is not a run: there is no such folder in {path.parent}; a model of the Hugging Face hub is "
            f"{PREFIX}{source}"
        )
    if own is not None and revision is not None and own != revision:
        raise ValueError(f"{source} with the revision {revision!r}: give one of the two")
    from duality.hub.package import PretrainedConfig  # which needs torch; to fetch a folder needs none

    try:
        folder = fetch_folder(name, revision or own, PretrainedConfig.read)
    except ValueError as error:
        if explicit:
            raise
        raise ValueError(f"there is no folder {source}, and {error}") from None
    return ModelSource(folder, f"{PREFIX}{name}", folder.name)


def fetch_folder(
    name: str,
    revision: str | None = None,
    accept: Callable[[Path], object] | None = None,
    files: Sequence[str] = _FILES,
) -> Path:
    """The files of a model on the hub, fetched if they are not there; the folder has the name of their commit.

    ``accept`` may refuse the model: it is given the folder when nothing but config.json is there.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{PREFIX}{name} names no model of the Hugging Face hub: write {PREFIX}OWNER/NAME")
    folder = _fetch(name, revision, [_CONFIG])
    if not (folder / _CONFIG).is_file():
        raise ValueError(f"{_describe_name(name, revision)} has no {_CONFIG}: choose another model")
    if accept is not None:
        accept(folder)
    return _fetch(name, folder.name, list(files))


def _fetch(name: str, revision: str | None, patterns: list[str]) -> Path:
    """The files of a model whose names fit the patterns; those of its subfolders are left out."""
    import huggingface_hub as hub

    with asking_hub(name, revision):
        found = hub.snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"])
    return Path(found)


@contextmanager
def asking_hub(
    name: str, revision: str | None, refusal: Callable[[Exception], str | None] = lambda error: None
) -> Iterator[None]:
    """Show the bars of the package only if somebody sees them, and turn an error into one that names the model.

    The error is one of the network, of the hub or of the disk. ``refusal`` may say why the hub does not do what is
    asked, and what to do.
    """
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silent = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if silent:
        disable_progress_bars()
    try:
        yield
    except Exception as error:
        raise ValueError(f"{_describe_name(name, revision)} {refusal(error) or _explain_error(error)}") from None
    finally:
        if silent:
            enable_progress_bars()


def _explain_error(error: Exception) -> str:
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


def _describe_name(name: str, revision: str | None) -> str:
    """A model of the hub, for messages."""
    return f"the model {name} of the Hugging Face hub" + (f" at {revision}" if revision else "")
