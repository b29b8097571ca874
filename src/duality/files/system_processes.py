"""Which process it is, and whether it still runs: what a process writes can name it by this text.

    1f0c53a2-4711-88123         <machine>-<number>-<its start>

A number alone does not tell a process: it means something within one start of one machine or container, and after the
end of a process another one gets it. What must hold: a process that runs is never said to be dead.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import zlib
from functools import cache
from pathlib import Path

PROCESS = r"[0-9a-f]{8}-[0-9]{1,10}-[0-9]{1,20}"


def own_process() -> str:
    """What this process is called."""
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    """What a process that began once is called, here; the start is 0 if it is not known."""
    return f"{_this_machine()}-{pid}-{max(0, _start_of(pid) or 0)}"


def process_number(process: str) -> int:
    """The number of a process on its machine."""
    return int(process.split("-")[1])


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
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass  # no Linux
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:8]
