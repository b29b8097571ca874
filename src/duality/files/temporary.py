"""Temporary names that say who writes: what a process that died has left can be told from work in progress.

    .corpus.json.1f0c53a2-4711-88123-9ab2c4         .<name>.<host>-<process>-<its start>-<random>

The next process that writes to the same place removes what dead processes have left there. A process is dead if it is
gone, or if its number belongs to another one by now, which began at another time. Of another machine, or another
container, this cannot be known: its files are left alone until nothing in them has changed for a day.

What must hold: the files of a process that runs are never removed, nor any file whose name is not of this form.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

A_DAY = 86_400.0
_OWNER = re.compile(r"\.([0-9a-f]{8})-([0-9]{1,10})-([0-9]{1,20})-[0-9a-f]{6}")
_OWNER_AT_END = re.compile(f"{_OWNER.pattern}$")
_LONGEST = 100  # characters of a name within a temporary name; file systems allow 255 for all of it


def temporary_name(path: Path, prefix: str = ".") -> Path:
    """A new hidden name beside ``path``; it begins with ``prefix`` and the name of ``path`` and ends with the owner."""
    pid = os.getpid()
    owner = f"{this_host()}-{pid}-{start_of(pid) or 0}-{secrets.token_hex(3)}"
    return path.with_name(f"{prefix}{path.name[:_LONGEST]}.{owner}")


def remove_leftovers(path: Path) -> None:
    """Remove what dead processes have left under temporary names of ``path``; what cannot be removed stays."""
    for found in find_abandoned(path.parent, f".{path.name[:_LONGEST]}", whole=True):
        remove_quietly(found)


def find_abandoned(folder: Path, beginning: str, whole: bool = False) -> Iterator[Path]:
    """The entries of a folder that dead processes have left: their names have this beginning and end with the owner.

    With ``whole`` nothing stands between the two. There are none if the folder cannot be read.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        owned = _OWNER.fullmatch(name[len(beginning) :]) if whole else _OWNER_AT_END.search(name)
        if name.startswith(beginning) and owned and is_abandoned(folder / name):
            yield folder / name


def is_abandoned(path: Path) -> bool:
    """Whether the process that writes under a temporary name is dead, or, if that cannot be known, idle for a day."""
    owner = _OWNER_AT_END.search(path.name)
    if owner is not None and owner[1] == this_host():
        return not runs(int(owner[2]), int(owner[3]))
    return newest_change(path) < time.time() - A_DAY


def runs(pid: int, start: int) -> bool:
    """Whether a process with this number runs, and began at this time (0 is any time)."""
    if os.name == "nt":  # Windows has no signal that only asks
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it belongs to another user
    began = start_of(pid)
    return began != -1 and (began is None or start == 0 or began == start)


def start_of(pid: int) -> int | None:
    """When a process began, in ticks since the start of the system; -1 if it has ended, None if it is not known."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()  # the name of the program, in brackets, may contain anything
    return -1 if state in "ZX" else int(fields[18])


@cache
def this_host() -> str:
    """What distinguishes machines, their starts and their containers: process numbers mean something within one."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass  # no Linux
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:8]


def newest_change(path: Path) -> float:
    """When a file, or anything in a folder, was changed last; now, if that cannot be read."""
    try:
        return max(found.lstat().st_mtime for found in [path, *path.rglob("*")])
    except OSError:
        return time.time()


def remove_quietly(path: Path) -> None:
    """Delete a folder or a file; what cannot be deleted stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()
