"""Files that are complete or absent: checksums, flushing to the disk, atomic replacement; and which process writes.

A folder or a file is written under another name beside its target, flushed to the disk, then renamed. The other name
says which process writes, so that another one knows whether it still runs:

    .partial-corpus.json.1f0c53a2-4711-88123-9ab2c4         .partial-<name>.<process>-<random>
                         1f0c53a2-4711-88123                <machine>-<number>-<its start>

A number alone does not tell a process: it means something within one start of one machine or container, and after the
end of a process another one gets it.

The next process that writes to the same folder removes what dead processes have left there. A folder with a file
``UNFINISHED``, which says how far it is, is kept for a week, so that somebody can continue it. Of a process of another
machine it is not known whether it runs: its files are left alone until nothing in them has changed for a day.

What must hold: a file written with ``atomic_file`` or ``write_atomically`` has its old content or its new content at
every moment, also after a crash; a folder written with ``atomic_folder`` is complete or absent; a block that fails
leaves the old content and no temporary file; nothing but a regular file is ever replaced. A process that runs is never
said to be dead: its files are never removed, nor any file whose name is not of this form.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TextIO

# What the operating system says if there is no room, on the disk or in the user's share of it.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
PARTIAL = ".partial-"
PROCESS = r"[0-9a-f]{8}-[0-9]{1,10}-[0-9]{1,20}"
UNFINISHED = "progress.json"
_A_DAY = 86_400.0
_LEFTOVER = re.compile(rf"{re.escape(PARTIAL)}.*\.({PROCESS})-[0-9a-f]{{6}}")
_LONGEST = 100  # bytes of a name within a temporary name; file systems allow 255 for all of it


def json_text(value: object, indent: int | None = None) -> str:
    """A value as JSON that every program reads: a number that is not finite, for which JSON has no word, is null.

    >>> json_text({"perplexity": float("inf"), "nats": 2.5})
    '{"perplexity": null, "nats": 2.5}'
    """
    finite = json.loads(json.dumps(value, default=dict), parse_constant=lambda number: None)
    return json.dumps(finite, indent=indent, allow_nan=False)


def file_sha256(path: Path) -> str:
    """The sha256 of a file of any size, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def readable_size(num_bytes: float) -> str:
    """A number of bytes for people.

    >>> readable_size(0), readable_size(1_234), readable_size(56_789_000), readable_size(2.5e9)
    ('0.0 MB', '0.1 MB', '56.8 MB', '2.50 GB')
    """
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:.2f} GB"
    return f"{max(num_bytes, 1e5 if num_bytes else 0) / 1e6:.1f} MB"


def flush_to_disk(path: Path) -> None:
    """Make a file, or the list of names in a folder, survive a loss of power."""
    if os.name == "nt":  # Windows opens no folders and refuses to flush what is open for reading only.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_file(path: Path, remedy: str = "give the name of a file") -> None:
    """Refuse what is there and no file: a folder, or a device or a pipe, which may never give a byte or never end."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: {remedy}")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or a pipe, not a file: {remedy}")


def regular_file(path: Path) -> Path:
    """Where a file named ``path`` is written: at the end of all symbolic links.

    What is there and no file is refused, as is a folder that does not exist: what is there is not replaced.
    """
    check_file(path)
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise ValueError(f"{path} is a link that leads to itself: give the name of a file")
    if not target.parent.is_dir():
        raise ValueError(f"there is no folder {target.parent} to write {path.name} in: make it, or give another name")
    return target


def output_folder(path: Path) -> Path:
    """A folder for results, which is made if there is none; one that cannot be written is refused before any work."""
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "the folder cannot be written", str(path))
    return path


@contextmanager
def no_empty_folder(path: Path) -> Iterator[None]:
    """If the block fails, the folder and those above it that it has made and left empty are removed again."""
    absent = [each for each in (path, *path.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        for each in absent:
            with suppress(OSError):  # it holds something, or was never made
                each.rmdir()
        raise


def own_process() -> str:
    """What this process is called."""
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    """What a process that began once is called, here; the start is 0 if it is not known."""
    return f"{_this_machine()}-{pid}-{max(0, _start_of(pid) or 0)}"


def is_running(process: str) -> bool | None:
    """Whether a process runs; None if that cannot be known here, for one of another machine or on Windows."""
    if os.name == "nt" or not re.fullmatch(PROCESS, process) or not process.startswith(_this_machine()):
        return None  # Windows has no signal that only asks
    pid, start = map(int, process.split("-")[1:])
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it belongs to another user
    began = _start_of(pid)
    return began is None or (began != -1 and start in (0, began))


def _start_of(pid: int) -> int | None:
    """A number for when a process began; -1 if it has ended, None if it is not known."""
    try:
        if Path("/proc/self/stat").exists():
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            state, *fields = text.rpartition(")")[2].split()  # the name of the program, in brackets, may be anything
            return -1 if state in "ZX" else int(fields[18])
        listing = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, check=False).stdout
        return zlib.crc32(listing.strip()) if listing.strip() else -1
    except OSError:  # no such process, one that is hidden, or no such command
        return None


@cache
def _this_machine() -> str:
    """What distinguishes machines, their starts and their containers."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # no Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:8]


def _temporary_name(path: Path) -> Path:
    """A new hidden name beside ``path``, which says that this process writes there."""
    name, data = path.name, os.fsencode(path.name)
    if len(data) > _LONGEST:  # its beginning and a checksum
        name = f"{data[:_LONGEST].decode(errors='ignore')}-{hashlib.sha256(data).hexdigest()[:8]}"
    return path.with_name(f"{PARTIAL}{name}.{own_process()}-{secrets.token_hex(3)}")


def find_abandoned(folder: Path) -> list[Path]:
    """What dead processes have left in a folder under temporary names, or others without a change for a day."""
    found = []
    with suppress(OSError):  # a folder that cannot be read
        for path in folder.iterdir():
            if leftover := _LEFTOVER.fullmatch(path.name):
                runs = is_running(leftover[1])
                if runs is False or (runs is None and _idle_seconds(path) > _A_DAY):
                    found.append(path)
    return found


def _remove_abandoned(folder: Path) -> None:
    """Remove what dead processes have left in a folder, and nobody can continue; what cannot be removed stays."""
    for path in find_abandoned(folder):
        if not _can_continue(path):
            with suppress(OSError):
                remove(path)


def _can_continue(folder: Path) -> bool:
    """Whether a folder can be continued: it says how far it is, and is not older than a week."""
    return any(folder.rglob(UNFINISHED)) and _idle_seconds(folder) < 7 * _A_DAY


def _idle_seconds(path: Path) -> float:
    """How long nothing has changed in a file or folder; 0 if that cannot be read."""
    with suppress(OSError):
        return time.time() - max(found.lstat().st_mtime for found in [path, *path.rglob("*")])
    return 0.0


@contextmanager
def atomic_folder(target: Path, *, resume: bool = False, shared: bool = True) -> Iterator[Path]:
    """A new folder to write into, which is renamed to ``target`` at the end; if the block fails it is deleted.

    With ``resume`` it may have what a process has written into it that was killed or interrupted; an interruption then
    leaves it as it is. If another process has made a ``shared`` folder in the meantime, the first one stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _temporary_name(target)
    for found in find_abandoned(target.parent) if resume else ():
        if found.name.rpartition(".")[0] == partial.name.rpartition(".")[0] and _can_continue(found):
            with suppress(OSError):  # another process may be faster
                found.rename(partial)
                break
    else:
        partial.mkdir()
    _remove_abandoned(target.parent)
    keep = False
    try:
        yield partial
        for path in [*partial.rglob("*"), partial]:
            flush_to_disk(path)
        try:
            partial.rename(target)
        except OSError:
            if not (shared and target.is_dir()):
                raise
        flush_to_disk(target.parent)
    except (KeyboardInterrupt, SystemExit):
        keep = resume and _can_continue(partial)
        raise
    finally:
        if not keep:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder for a user, in a folder that is made if there is none: it is complete or absent."""
    with no_empty_folder(target.parent), atomic_folder(target, shared=False) as partial:
        yield partial


@contextmanager
def atomic_file(path: Path) -> Iterator[TextIO]:
    """A new UTF-8 file to write into, which replaces ``path`` at the end of the block."""
    path = regular_file(path)
    _remove_abandoned(path.parent)
    temporary = _temporary_name(path)
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            yield stream
        flush_to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_to_disk(path.parent)


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of ``path`` by ``text``."""
    with atomic_file(path) as stream:
        stream.write(text)


def remove(path: Path) -> None:
    """Delete a folder with all that is in it, or a file; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
