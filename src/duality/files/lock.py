"""The lock of a run folder: one training at a time.

    with locked(folder): ...        refuses with the holder's process, host and time if another training has the folder

The lock is the file ``training.lock``. Its holder has it locked with flock, which the system releases when the process
ends, however it ends, and has written into it who it is: process (atomic.py), host, since when, command.
Two cases remain in which flock alone does not decide:

    no flock on this file system      the file is made by one process only; whether a holder on this host runs is known
    a holder on another host          flock may not reach between hosts; a holder alive changes the time of the file
                                      every ``BEAT`` seconds, and who wants the lock waits ``PATIENCE`` of them

The library filelock has the first case alone: it does not know who holds a lock, nor whether a holder on another host
lives.

What must hold: two trainings never have a folder at the same time; a killed holder stops nobody; who is refused has
changed nothing in the folder; at the end of a training the file is gone. Reading a run needs no lock.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from duality.files.atomic import PROCESS, check_file, is_running, own_process
from duality.files.json_files import KIB, read_json
from duality.files.progress import Reporter, silent

LOCK = "training.lock"
BEAT = 10.0  # seconds between two signs of life
PATIENCE = 2.5  # beats without a sign after which a holder on another host counts as dead

_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class _RunLocked(ValueError):
    """Another training has the run folder."""


@dataclass(frozen=True)
class _Holder:
    """Who has a lock: a process of a host; ``since`` and ``command`` are for people."""

    process: str
    host: str
    since: str
    command: str

    @property
    def pid(self) -> int:
        """The number of the process."""
        return int(self.process.split("-")[1])


@contextmanager
def locked(folder: Path, report: Reporter = silent) -> Iterator[None]:
    """Have the run folder alone for the duration of a ``with`` block; ``_RunLocked`` if another training has it."""
    path, ended = folder / LOCK, threading.Event()
    beats = threading.Thread(target=_show_life, args=(path, ended), name="lock", daemon=True)
    descriptor = _take(path, report)
    try:
        os.ftruncate(descriptor, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        holder = _Holder(own_process(), socket.gethostname(), since, " ".join(sys.argv)[:500])
        os.write(descriptor, json.dumps(asdict(holder), indent=1).encode("utf-8"))
        beats.start()
        yield
    finally:
        ended.set()
        if beats.ident is not None:
            beats.join()
        ours = _is_at(path, descriptor)  # the folder may be another one by now
        if os.name == "nt":  # Windows removes no file that is open
            os.close(descriptor)
        if ours:
            path.unlink(missing_ok=True)  # before the lock is released: who gets this file then sees that it is gone
        if os.name != "nt":
            os.close(descriptor)


def _take(path: Path, report: Reporter) -> int:
    """The open file of a lock that is now ours."""
    while True:
        try:
            descriptor, new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            try:
                descriptor, new = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), False
            except FileNotFoundError:
                continue  # removed by its holder at this moment
        with ExitStack() as unless_ours:
            unless_ours.callback(os.close, descriptor)
            got = _flock(descriptor)
            if got is False:
                raise _refusal(path, _read_holder(path))
            if got and not _is_at(path, descriptor):
                continue  # its holder removed it before the lock came to us
            if not new:
                found = _read_holder(path)
                if found is not None and found.host != socket.gethostname():
                    _await_death(path, found, report)
                elif got is None and (found is None or is_running(found.process)):
                    raise _refusal(path, found)
                if got is None and _is_at(path, descriptor):
                    path.unlink(missing_ok=True)  # of a dead process: the next round makes a new one
                if not _is_at(path, descriptor):
                    continue
            unless_ours.pop_all()
            return descriptor


def _flock(descriptor: int) -> bool | None:
    """Lock a file: True if it is ours now, False if another process has it, None if the file system has no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows
        return None
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return None
        raise
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one at ``path``."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _read_holder(path: Path) -> _Holder | None:
    """Who has written itself into the file of a lock; None for a file that is not there, empty or damaged."""
    with suppress(OSError, ValueError, TypeError):
        found = read_json(path, 64 * KIB)
        if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
            holder = _Holder(**found)
            return holder if re.fullmatch(PROCESS, holder.process) else None
    return None


def _show_life(path: Path, ended: threading.Event) -> None:
    """Change the time of the file every ``BEAT`` seconds until ``ended``."""
    while not ended.wait(BEAT):
        with suppress(OSError):
            os.utime(path)


def _await_death(path: Path, holder: _Holder, report: Reporter) -> None:
    """Return if a holder on another host shows no sign of life; ``_RunLocked`` as soon as it shows one."""
    report(f"{path} says that process {holder.pid} on {holder.host} trains here since {holder.since}: looking whether")
    report(f"it still does, for {PATIENCE * BEAT:.0f} seconds; `rm {path}` if you know that it does not")
    before, until = _read_change_time(path), time.monotonic() + PATIENCE * BEAT
    while time.monotonic() < until:
        time.sleep(BEAT / 20)
        now = _read_change_time(path)
        if now is None:
            return
        if now != before:
            raise _refusal(path, holder)


def _read_change_time(path: Path) -> int | None:
    """When the file was changed, as the file system says; it is opened, because network file systems keep old times."""
    with suppress(OSError, ValueError):
        check_file(path)
        with path.open("rb") as stream:
            return os.fstat(stream.fileno()).st_mtime_ns
    return None


def _refusal(path: Path, holder: _Holder | None) -> _RunLocked:
    """What is said to who does not get the lock."""
    who, end = f"another process (see {path})", f"; if no process trains there, delete {path.name}"
    wait = "wait until it ends or"
    if holder is not None:
        who, end = f"process {holder.pid} on {holder.host} since {holder.since} ({holder.command})", ""
        where = "" if holder.host == socket.gethostname() else f" on {holder.host}"
        wait = f"wait until it ends, stop it with `kill {holder.pid}`{where} (it saves first), or"
    return _RunLocked(f"{path.parent} is being trained by {who}: {wait} choose another --out (out=){end}")


def holder_of(folder: Path) -> _Holder | None:
    """Who trains in a run folder now, as far as can be seen without trying to lock it; None if nobody does."""
    found, changed = _read_holder(folder / LOCK), _read_change_time(folder / LOCK)
    if found is None or changed is None:
        return None
    here, shows_life = found.host == socket.gethostname(), time.time() - changed / 1e9 < 6 * BEAT
    return found if (is_running(found.process) if here else shows_life) else None
