"""The cache: where fetched and prepared data are kept.

The cache folder is $DUALITY_CACHE, or else the user's cache folder of the operating system. It holds

    archives/   packages as downloaded (a file that the user puts here is used like a downloaded one)
    sources/    the text files of the named corpora
    tokenizers/ the files of published tokenizers
    judges/     the files of published language models that score samples
    molecules/  the molecules of training texts in canonical form
    stores/     tokenized corpora, each under the hash of everything it was made from

What must hold: a folder of the cache is absent or complete. It is written under another name beside its target,
flushed to the disk, then renamed. A process that is killed leaves at most a ``.partial-*`` folder. The next process
that writes there removes it, or, if there is a file ``UNFINISHED`` in it that says how far it is, continues it (one
that nobody continues for a week is removed).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from duality.files.atomic import DISK_FULL, flush_to_disk, readable_size
from duality.files.temporary import (
    A_DAY,
    abandoned,
    has_owner,
    hidden_entries,
    newest_change,
    remove_quietly,
    temporary_name,
)

CACHE_VARIABLE = "DUALITY_CACHE"
PARTIAL = ".partial-"
UNFINISHED = "progress.json"
A_WEEK = 7 * A_DAY
OLD_PARTIAL = re.compile(r"\.partial-.+-[0-9a-f]{12}")  # of older versions


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
def atomic_folder(target: Path, *, resume: bool = False) -> Iterator[Path]:
    """A new folder to write into, which is renamed to ``target`` at the end; if the block fails it is deleted.

    With ``resume`` it may have what a process has written into it that was killed or interrupted; an interruption then
    leaves it as it is.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = temporary_name(target, PARTIAL)
    if not (resume and adopted(target, partial)):
        partial.mkdir()
    remove_partial(target.parent)
    keep = False
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
    except (KeyboardInterrupt, SystemExit):
        keep = resume and unfinished(partial)
        raise
    finally:
        if not keep:
            shutil.rmtree(partial, ignore_errors=True)


def adopted(target: Path, partial: Path) -> bool:
    """Whether there was an unfinished folder of a dead process for the same target; it is now ``partial``."""
    for found in hidden_entries(target.parent, f"{PARTIAL}{target.name}."):
        if has_owner(found.name) and abandoned(found) and unfinished(found):
            with suppress(OSError):  # another process may be faster
                found.rename(partial)
                return True
    return False


def unfinished(folder: Path) -> bool:
    """Whether a folder can be continued: it says how far it is, and is not older than a week."""
    return any(folder.rglob(UNFINISHED)) and newest_change(folder) > time.time() - A_WEEK


def remove_partial(folder: Path) -> None:
    """Remove the folders that dead processes were writing below ``folder``, but for those that can be continued."""
    for found in hidden_entries(folder, PARTIAL):
        if (has_owner(found.name) or OLD_PARTIAL.fullmatch(found.name)) and abandoned(found) and not unfinished(found):
            remove_quietly(found)


def remove(path: Path) -> None:
    """Delete a folder with all that is in it, or a file; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
