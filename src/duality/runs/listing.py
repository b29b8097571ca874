"""The run folders below a directory: what each is, how far it is, and whether it is being trained.

What must hold: nothing is changed, locked or waited for; a folder that cannot be read is a row that says why; neither
torch nor the recipes are imported.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from duality.files.json_files import MIB, read_json
from duality.files.lock import holder_of
from duality.hub.released import RECORD
from duality.training.metrics import read_metrics

RECIPE = "recipe.json"
State = Literal["running", "stopped", "finished", "imported", "unreadable"]
_DEEPEST = 6  # folders below the directory


@dataclass(frozen=True, kw_only=True)
class RunOverview:
    """A run folder. ``age`` are the seconds since its last checkpoint or its last logged step."""

    run: str
    state: State
    recipe: str | None = None
    step: int | None
    steps: int | None = None
    validation_nats: float | None = None
    bytes: int
    age: float
    holder: str | None = None
    problem: str | None = None

    @staticmethod
    def of(folder: Path, directory: Path) -> RunOverview:
        """One run; of its recipe name and number of steps are read, without building what it describes."""
        name = str(folder.relative_to(directory)) if folder != directory else str(folder)
        size = sum(facts.st_size for path in folder.rglob("*") if stat.S_ISREG((facts := _facts(path)).st_mode))
        touched = map(_facts, (folder / "metrics.jsonl", folder / "checkpoints" / "latest"))
        changed = max(facts.st_mtime for facts in touched) or _facts(folder / RECIPE).st_mtime
        step = newest_step(folder / "checkpoints")
        found = RunOverview(run=name, state="unreadable", step=step, bytes=size, age=time.time() - changed)
        path = folder / RECIPE
        try:
            with suppress(FileNotFoundError):  # what may not be read is said
                os.listdir(folder / "checkpoints")
            match read_json(path, MIB):
                case {"name": str(title), "training": {"steps": int(steps)}} if not isinstance(steps, bool):
                    rows = [row for row in read_metrics(folder) if "validation_nats" in row]
                case _:
                    raise ValueError(f"{path} is damaged (it has no name and training.steps): restore it from a backup")
        except (ValueError, OSError) as error:
            return replace(found, problem=str(error))
        nats = float(rows[-1]["validation_nats"]) if rows else None
        found = replace(found, recipe=title, steps=steps, validation_nats=nats)
        if (holder := holder_of(folder)) is not None:
            return replace(found, state="running", holder=f"process {holder.pid} on {holder.host}")
        state: State = "finished" if step is not None and step >= steps else "stopped"
        return replace(found, state="imported" if (folder / RECORD).is_file() else state)


def overviews(directory: Path) -> list[RunOverview]:
    """All runs below ``directory``, which may be one itself, by path."""
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a folder: give one that holds run folders, such as runs")
    os.listdir(directory)  # an error if it may not be read, where a folder below it is passed over
    return [RunOverview.of(folder, directory) for folder in sorted(run_folders(directory))]


def run_folders(directory: Path) -> Iterator[Path]:
    """Folders with a recipe.json; inside a run, and through links, there is nothing to look for."""
    for path, inside, files in os.walk(directory):  # a folder that may not be read is passed over
        folder = Path(path)
        if RECIPE in files:
            yield folder
        ends = RECIPE in files or len(folder.relative_to(directory).parts) == _DEEPEST
        inside[:] = [] if ends else [name for name in inside if not name.startswith(".")]


def _facts(path: Path) -> os.stat_result:
    """What the file system says of a file, and zeros if it may not or cannot say it."""
    try:
        return path.lstat()
    except OSError:
        return os.stat_result([0] * 10)


def newest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint; None if there is none, or the folder has been deleted."""
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    return max((int(name[5:]) for name in names if re.fullmatch(r"step-\d{8,}", name)), default=None)
