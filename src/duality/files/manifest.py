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
from pathlib import Path

from duality.files.atomic import file_sha256, temporary_name, write_atomically

MANIFEST = "manifest.json"
RECORD = ".verified.json"
CLOCK_STEP = 2_000_000_000  # nanoseconds; the coarsest file systems in use count in steps of 2 s

_State = list[int | str]  # size, two times and number of a file, and the checksum that it was verified with


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
    files = _read_manifest(folder)
    recorded: object = {}
    with suppress(OSError, ValueError, RecursionError):
        recorded = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    probe, now = temporary_name(folder / RECORD), 0
    with suppress(OSError):  # a folder that cannot be written has no clock, and gets no record
        probe.touch()
        now = probe.stat().st_mtime_ns
        probe.unlink()
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


def _read_manifest(folder: Path) -> Mapping[str, tuple[int, str]]:
    """The bytes and the sha256 of the files of the manifest by name."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} has no {MANIFEST}: it is incomplete")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in content["files"].items()}
        own = content["name"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if own != folder.name or not files:
        raise ValueError(f"{path} is damaged: it is that of {own!r}, not of {folder.name!r}")
    return files
