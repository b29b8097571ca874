"""The cache: where fetched and prepared data are kept, sealed with checksums, and removed.

The cache folder is $DUALITY_CACHE, or else the user's cache folder of the operating system. It has a folder for every
kind of ``_KINDS``. Everything in it can be fetched or made again; removing it costs only the time for that. A user may
put a package into ``archives/`` that this machine cannot fetch.

In a sealed folder every file has its size and its checksum in a manifest, and is compared with it before it is used:

    <folder>/manifest.json     the folder's own name; bytes and sha256 of every file below it
             .verified.json    what the file system said of each file (size, times, number) when it was last verified

Reading all files of a large corpus takes long. A file is therefore read only if the file system says something else of
it than at its last verification: its size, its time of change, the time of change of its entry (which no program can
put back), its number. Times have a resolution: a file that was changed just before it was verified could change
again at the same time, so it is recorded only when it is older than ``CLOCK_STEP`` by the clock of its own file system.

What must hold: a folder of the cache is absent or complete, and a process that is killed leaves at most a
``.partial-*`` entry (atomic.py). Nothing outside the cache folder is removed, nor what a running process is writing; a
folder with anything in it that the cache does not make is refused as a whole, because ``DUALITY_CACHE`` may name a
folder of the user's by mistake. A file that differs from its manifest is an error, also if its time was put back; a
folder in the place of another one is an error; a record that is damaged or cannot be written only costs time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from duality.files.atomic import DISK_FULL, PARTIAL, file_sha256, find_abandoned, readable_size, write_atomically
from duality.registry import suggestion

CACHE_VARIABLE = "DUALITY_CACHE"
MANIFEST = "manifest.json"
RECORD = ".verified.json"
CLOCK_STEP = 2_000_000_000  # nanoseconds; the coarsest file systems in use count in steps of 2 s

_State = list[int | str]  # size, two times and number of a file, and the checksum that it was verified with

_KINDS = {  # what it is; what its entries look like, those of folders with a slash at the end
    "archives": ("packages as downloaded", r".+\.(whl|zip|tar\.gz|tgz)"),
    "sources": ("texts of named corpora", r"[\w.-]+/"),
    "tokenizers": ("published tokenizers", r"[\w.-]+/"),
    "judges": ("language models that score samples", r"[\w.-]+/"),
    "molecules": ("training molecules in canonical form", r"[0-9a-f]{64}\.txt"),
    "stores": ("tokenized corpora", r"[0-9a-f]{64}/"),  # the name is the hash of everything it was made from
}


def cache_folder(cache: Path | None = None) -> Path:
    """The folder given, else $DUALITY_CACHE, else the user's cache folder."""
    if cache is not None:
        return Path(cache)
    chosen = os.environ.get(CACHE_VARIABLE)
    return (Path(chosen) if chosen else platformdirs.user_cache_path("duality")).expanduser()


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


@dataclass(frozen=True)
class _Holding:
    """The entries of one kind, their size, and how many a running process is writing, which are not among them."""

    kind: str
    title: str
    entries: Sequence[Path]
    num_bytes: int
    in_progress: int


def holdings(root: Path, kind: str = "") -> list[_Holding]:
    """What the cache folder holds, of one kind or of all; a folder that is no cache is refused."""
    if kind and kind not in _KINDS:
        raise ValueError(f"the cache has no kind {kind!r}: {suggestion(kind, _KINDS)}")
    if root.exists() and not root.is_dir():
        raise ValueError(f"{root} is no folder: set {CACHE_VARIABLE} to the cache folder")
    if (foreign := _find_foreign(root)) is not None:
        raise ValueError(
            f"{root} does not look like a cache folder of duality, because of {foreign}: nothing was removed; set "
            f"{CACHE_VARIABLE} to the cache folder, or move that away"
        )
    found = []
    for name in [kind] if kind else _KINDS:
        dead = find_abandoned(root / name)
        entries = [*_visible(root / name), *dead]
        inside = {path for entry in entries for path in [entry, *entry.rglob("*")]}
        size = sum(path.lstat().st_size for path in inside if path.is_symlink() or path.is_file())
        in_progress = sum(1 for _ in (root / name).glob(f"{PARTIAL}*")) - len(dead)
        found.append(_Holding(name, _KINDS[name][0], entries, size, in_progress))
    return found


def _find_foreign(root: Path) -> Path | None:
    """Something that the cache does not make; an absent folder is an empty cache."""
    for folder in _visible(root):
        if folder.name not in _KINDS or folder.is_symlink() or not folder.is_dir():
            return folder
        for entry in _visible(folder):
            name = entry.name + "/" * entry.is_dir()
            if entry.is_symlink() or not re.fullmatch(_KINDS[folder.name][1], name):
                return entry
            if entry.is_dir() and folder.name != "stores" and not all(path.is_file() for path in entry.iterdir()):
                return entry  # only a store has folders in its folder
    return None


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, but for hidden files; nothing if there is no folder."""
    return sorted(path for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []


def seal(folder: Path, name: str) -> None:
    """Write the manifest of a folder that will have the name ``name``."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (MANIFEST, RECORD))
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in paths
    }
    (folder / MANIFEST).write_text(json.dumps({"name": name, "files": files}, indent=1), encoding="utf-8")


def verify(folder: Path) -> None:
    """Compare all files of a sealed folder with its manifest; a difference is an error."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    manifest, recorded = folder / MANIFEST, dict[str, _State]()
    if not manifest.is_file():
        raise ValueError(f"{folder} has no {MANIFEST}: it is incomplete")
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in content["files"].items()}
        own = content["name"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{manifest} is damaged ({error})") from None
    if own != folder.name or not files:
        raise ValueError(f"{manifest} is damaged: it is that of {own!r}, not of {folder.name!r}")
    with suppress(OSError, ValueError, RecursionError):
        recorded = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    now = 0
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as new:
        now = os.fstat(new.fileno()).st_mtime_ns  # a folder that cannot be written has no clock, and gets no record
    known: dict[str, _State] = {}
    for name, (size, sha256) in files.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing")
        status = path.stat()
        state: _State = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, sha256]
        if status.st_size != size:
            raise ValueError(f"{path} is damaged: {status.st_size} bytes, not {size}")
        if not isinstance(recorded, dict) or state != recorded.get(name):
            if file_sha256(path) != sha256:
                raise ValueError(f"{path} is damaged: its sha256 has changed")
            if max(status.st_mtime_ns, status.st_ctime_ns) + CLOCK_STEP >= now:
                continue
        known[name] = state
    if known != recorded:
        with suppress(OSError, ValueError):  # the record only saves time
            write_atomically(folder / RECORD, json.dumps(known, indent=1))
