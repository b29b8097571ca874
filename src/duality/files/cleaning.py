"""What the cache holds, by kind, and removing it.

Everything in the cache can be fetched or made again; removing it costs only the time for that. What must hold: nothing
outside the cache folder is removed, nor what a running process is writing; a folder with anything in it that the cache
does not make is refused as a whole, because ``DUALITY_CACHE`` may name a folder of the user's by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from duality.files.atomic import PARTIAL, remove
from duality.files.cache import CACHE_VARIABLE
from duality.files.temporary import is_abandoned
from duality.registry import suggestion


@dataclass(frozen=True)
class _Kind:
    """A part of the cache: what it is, and what its entries look like; ``folders`` says what kind of entry they are."""

    title: str
    pattern: str
    folders: bool


KINDS = {
    "archives": _Kind("packages as downloaded", r".+\.(whl|zip|tar\.gz|tgz)", folders=False),
    "sources": _Kind("texts of named corpora", r"[\w.-]+", folders=True),
    "tokenizers": _Kind("published tokenizers", r"[\w.-]+", folders=True),
    "judges": _Kind("language models that score samples", r"[\w.-]+", folders=True),
    "molecules": _Kind("training molecules in canonical form", r"[0-9a-f]{64}\.txt", folders=False),
    "stores": _Kind("tokenized corpora", r"[0-9a-f]{64}", folders=True),
}


@dataclass(frozen=True)
class _Holding:
    """The entries of one kind, their size, and how many a running process is writing, which are not among them."""

    kind: str
    entries: tuple[Path, ...]
    num_bytes: int
    in_progress: int

    @property
    def title(self) -> str:
        """What the kind is."""
        return KINDS[self.kind].title


def holdings(root: Path, kind: str = "") -> list[_Holding]:
    """What the cache folder holds, of one kind or of all; a folder that is no cache is refused."""
    if kind and kind not in KINDS:
        raise ValueError(f"the cache has no kind {kind!r}: {suggestion(kind, KINDS)}")
    _check_is_cache(root)
    return [_holding_of(root, each) for each in KINDS if kind in ("", each)]


def free(found: Sequence[_Holding]) -> int:
    """Remove the entries; how many bytes they had."""
    for holding in found:
        for path in holding.entries:
            remove(path)
    return sum(holding.num_bytes for holding in found)


def _check_is_cache(root: Path) -> None:
    """Refuse a folder that contains anything that the cache does not make; an absent one is an empty cache."""
    if not root.exists():
        return
    if not root.is_dir():
        raise ValueError(f"{root} is no folder: set {CACHE_VARIABLE} to the cache folder")
    if (foreign := next(_find_foreign(root), None)) is not None:
        raise ValueError(
            f"{root} does not look like a cache folder of duality, because of {foreign}: nothing was removed; set "
            f"{CACHE_VARIABLE} to the cache folder, or move that away"
        )


def _find_foreign(root: Path) -> Iterator[Path]:
    """What the cache does not make."""
    for folder in sorted(root.iterdir()):
        if folder.name.startswith("."):
            continue
        if folder.name not in KINDS or folder.is_symlink() or not folder.is_dir():
            yield folder
            continue
        kind = KINDS[folder.name]
        for entry in sorted(folder.iterdir()):
            right = entry.is_file() if not kind.folders else entry.is_dir()
            if right and kind.folders and folder.name != "stores":  # only a store has folders in its folder
                right = all(path.is_file() for path in entry.iterdir())
            named = re.fullmatch(kind.pattern, entry.name) and not entry.is_symlink()
            if not entry.name.startswith(".") and not (right and named):
                yield entry


def _holding_of(root: Path, kind: str) -> _Holding:
    """What there is of one kind: entries, and what dead processes have left."""
    folder = root / kind
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    partial = [path for path in paths if path.name.startswith(PARTIAL)]
    dead = [path for path in partial if is_abandoned(path)]
    entries = (*(path for path in paths if not path.name.startswith(".")), *dead)
    return _Holding(kind, entries, sum(map(_size_of, entries)), len(partial) - len(dead))


def _size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    return sum(found.lstat().st_size for found in [path, *path.rglob("*")] if found.is_file() or found.is_symlink())
