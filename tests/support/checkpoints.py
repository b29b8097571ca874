"""The newest checkpoint of a folder that is intact, read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from duality.files.progress import Reporter
from duality.training import checkpoint


def load_newest(folder: Path, report: Reporter, groups: Sequence[str] | None = None) -> checkpoint.Checkpoint | None:
    """The content of ``checkpoint.newest_intact``."""
    path = checkpoint.newest_intact(folder, report, groups)
    return None if path is None else checkpoint.load(path, groups)
