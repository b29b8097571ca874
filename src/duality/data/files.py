"""Files that are complete or absent: checksums, flushing to the disk, atomic replacement.

What must hold: a file written with ``atomic_file`` or ``write_atomically`` has its old content or its new content at
every moment, also after a crash; a block that fails leaves the old content and no temporary file; what a process that
was killed has left (leftovers.py) is removed by the next one that writes the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from duality.data.leftovers import remove_leftovers, temporary_name

# What the operating system says if there is no room, on the disk or in the user's share of it.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


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


@contextmanager
def atomic_file(path: Path) -> Iterator[TextIO]:
    """A new UTF-8 file to write into, which replaces ``path`` at the end of the block."""
    remove_leftovers(path)
    temporary = temporary_name(path)
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


def write_checked(path: Path, text: str) -> None:
    """Replace the content of ``path`` by ``text``, after a line with its sha256."""
    write_atomically(path, f"sha256 {hashlib.sha256(text.encode('utf-8')).hexdigest()}\n{text}")


def read_checked(path: Path) -> str | None:
    """The text that ``write_checked`` wrote; None if it is not there or was changed."""
    try:
        first, _, text = path.read_bytes().decode("utf-8").partition("\n")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return text if first == f"sha256 {hashlib.sha256(text.encode('utf-8')).hexdigest()}" else None
