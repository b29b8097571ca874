"""Files that are whole or absent: checksums, flushing to the disk, atomic replacement."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def file_sha256(path: Path) -> str:
    """The sha256 of a file of any size, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def flush_to_disk(path: Path) -> None:
    """Make a file, or the list of names in a folder, survive a loss of power."""
    if os.name == "nt":  # Windows opens no folders and refuses to flush what is open for reading only.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``; a reader sees the old or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    flush_to_disk(temporary)
    os.replace(temporary, path)
    flush_to_disk(path.parent)
