"""Sealed folders: every file has its size and its checksum in a manifest, and is compared with it before it is used.

    <folder>/manifest.json     the folder's own name; bytes and sha256 of every file below it
             .verified.json    what the file system said of each file (size, times, number) when it was last verified

Reading all files of a large corpus takes long. A file is therefore read only if the file system says something else of
it than at its last verification: its size, its time of change, the time of change of its entry (which no program can
put back), its number. Times have a resolution: a file that was changed just before it was verified could change
again at the same time, so it is recorded only when it is older than ``CLOCK_STEP`` by the clock of its own file system.

What must hold: a file that differs from the manifest is an error, also if its time was put back; a folder in the place
of another one is an error; a record that is damaged or cannot be written only costs time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duality.files.atomic import file_sha256, write_atomically
from duality.files.temporary import temporary_name

MANIFEST = "manifest.json"
RECORD = ".verified.json"
CLOCK_STEP = 2_000_000_000  # nanoseconds; the coarsest file systems in use count in steps of 2 s

State = list[int | str]


@dataclass(frozen=True)
class Sealed:
    """One file of the manifest."""

    bytes: int
    sha256: str


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
    files = read_manifest(folder)
    recorded = read_record(folder)
    now = clock(folder)
    known: dict[str, State] = {}
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing")
        state = state_of(path, expected.sha256)
        if state[0] != expected.bytes:
            raise ValueError(f"{path} is damaged: {state[0]} bytes, not {expected.bytes}")
        if state != recorded.get(name):
            if file_sha256(path) != expected.sha256:
                raise ValueError(f"{path} is damaged: its sha256 has changed")
            if now is None or max(int(state[1]), int(state[2])) + CLOCK_STEP >= now:
                continue
        known[name] = state
    if known != recorded:
        with suppress(OSError, ValueError):  # the record only saves time
            write_atomically(folder / RECORD, json.dumps(known, indent=1))


def read_manifest(folder: Path) -> Mapping[str, Sealed]:
    """The files of the manifest by name."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} has no {MANIFEST}: it is incomplete, or of an older version")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        files = {name: Sealed(**entry) for name, entry in content["files"].items()}
        own = content["name"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if own != folder.name or not files:
        raise ValueError(f"{path} is damaged: it is that of {own!r}, not of {folder.name!r}")
    return files


def read_record(folder: Path) -> dict[str, State]:
    """What was verified before; nothing if it cannot be read."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def state_of(path: Path, sha256: str) -> State:
    """What the file system says of a file, and the checksum that it is verified with."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, sha256]


def clock(folder: Path) -> int | None:
    """The time now by the clock of the folder's file system; None if the folder cannot be written."""
    probe = temporary_name(folder / RECORD)
    try:
        probe.touch()
        now = probe.stat().st_mtime_ns
        probe.unlink()
        return now
    except OSError:
        return None
