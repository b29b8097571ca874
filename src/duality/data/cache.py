"""The cache: where fetched and prepared data are kept.

The cache folder is $DUALITY_CACHE, or else the user's cache folder of the operating system. It holds

    archives/   packages as downloaded (a file that the user puts here is used like a downloaded one)
    sources/    the text files of the named corpora
    tokenizers/ the files of published tokenizers
    judges/     the files of published language models that score samples
    molecules/  the molecules of training texts in canonical form
    stores/     tokenized corpora, each under the hash of everything it was made from

What must hold: a folder of the cache is absent or complete. It is written under another name beside its target,
flushed to the disk, then renamed. A process that is killed leaves at most a ``.partial-*`` folder, which nothing reads
and which the next process that writes there removes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from duality.data.files import DISK_FULL, flush_to_disk, readable_size
from duality.data.leftovers import abandoned, has_owner, hidden_entries, remove_quietly, temporary_name

CACHE_VARIABLE = "DUALITY_CACHE"
PARTIAL = ".partial-"
OLD_PARTIAL = re.compile(r"\.partial-.+-[0-9a-f]{12}")  # of older versions

Progress = Callable[[str], None]


def silent(message: str) -> None:
    """A progress callback that prints nothing."""


def cache_folder(cache: Path | None = None) -> Path:
    """The folder given, else $DUALITY_CACHE, else the user's cache folder."""
    if cache is not None:
        return Path(cache)
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("duality")


@contextmanager
def cache_errors(root: Path, doing: str, needed: Callable[[], str]) -> Iterator[None]:
    """Give errors of the files below ``root`` a text that says what to do; errors about other files pass.

    ``doing`` and ``needed`` say for what, and how much, room is needed. The error of a write names no file.
    """
    try:
        yield
    except OSError as error:
        name = None if error.filename is None else Path(os.fsdecode(error.filename))
        if error.errno is None or not (name is None or name.is_relative_to(root) or root.is_relative_to(name)):
            raise
        if error.errno in DISK_FULL:
            free = readable_size(shutil.disk_usage(next(path for path in (root, *root.parents) if path.is_dir())).free)
            problem = f"the disk of the cache folder {root} is full: {doing} needs {needed()}, and {free} are free"
            remedy = "make room (`duality data clean` shows what the cache holds)"
        else:
            about = "" if name is None else f": {name}"
            problem = f"the cache folder {root} cannot be used for {doing} ({error.strerror}{about})"
            remedy = "make it a folder that can be read and written"
        raise OSError(f"{problem}; {remedy}, or set {CACHE_VARIABLE} to another folder") from error


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A new folder to write into, which is renamed to ``target`` at the end; if the block fails it is deleted."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(target.parent)
    partial = temporary_name(target, PARTIAL)
    partial.mkdir()
    try:
        yield partial
        for path in [*partial.rglob("*"), partial]:
            flush_to_disk(path)
        try:
            partial.rename(target)
        except OSError:
            # Another process made the same folder in the meantime: the first one stays.
            if not target.is_dir():
                raise
        flush_to_disk(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Remove the folders that dead processes were writing below ``folder``."""
    for found in hidden_entries(folder, PARTIAL):
        if (has_owner(found.name) or OLD_PARTIAL.fullmatch(found.name)) and abandoned(found):
            remove_quietly(found)


def remove(path: Path) -> None:
    """Delete a folder with all that is in it, or a file; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
