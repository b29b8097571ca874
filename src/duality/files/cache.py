"""The cache: where fetched and prepared data are kept.

The cache folder is $DUALITY_CACHE, or else the user's cache folder of the operating system. It holds

    archives/   packages as downloaded (a file that the user puts here is used like a downloaded one)
    sources/    the text files of the named corpora
    tokenizers/ the files of published tokenizers
    judges/     the files of published language models that score samples
    molecules/  the molecules of training texts in canonical form
    stores/     tokenized corpora, each under the hash of everything it was made from

What must hold: a folder of the cache is absent or complete (atomic.py). A process that is killed leaves at most a
``.partial-*`` folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from duality.files.atomic import DISK_FULL, readable_size

CACHE_VARIABLE = "DUALITY_CACHE"


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
