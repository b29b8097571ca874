"""The run folders below a directory: what each is, how far it is, and whether it is being trained. The list of recipes.

The list of recipes, as `duality recipes` shows it, is kept in recipe_list.json, because building the networks takes
seconds. `python docs/site/generate.py` writes it.

What must hold: nothing is changed, locked or waited for; a folder that cannot be read is a row that says why; neither
torch nor the recipes are imported.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from duality.files.json_files import MIB, read_json
from duality.files.lock import holder_of
from duality.hub.released import RECORD
from duality.training.metrics import read_metrics

RECIPE = "recipe.json"
State = Literal["running", "stopped", "finished", "imported", "unreadable"]
_DEEPEST = 6  # folders below the directory


@dataclass(frozen=True)
class RunOverview:
    """A run folder. ``age`` are the seconds since its last checkpoint or its last logged step."""

    run: str
    state: State
    recipe: str | None
    step: int | None
    steps: int | None
    validation_nats: float | None
    bytes: int
    age: float
    holder: str | None = None
    problem: str | None = None


def overviews(directory: Path) -> list[RunOverview]:
    """All runs below ``directory``, which may be one itself, by path."""
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a folder: give one that holds run folders, such as runs")
    return [overview(folder, directory) for folder in sorted(run_folders(directory))]


def run_folders(directory: Path, depth: int = _DEEPEST) -> Iterator[Path]:
    """Folders with a recipe.json; inside a run, and through links, there is nothing to look for."""
    if (directory / RECIPE).is_file():
        yield directory
        return
    try:
        inside = [Path(entry) for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # a folder that may not be read
        return
    for folder in inside if depth else []:
        if not folder.name.startswith("."):
            yield from run_folders(folder, depth - 1)


def overview(folder: Path, directory: Path) -> RunOverview:
    """One run."""
    name = str(folder.relative_to(directory)) if folder != directory else str(folder)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files)
    step = newest_step(folder / "checkpoints")
    touched = [path for path in (folder / "metrics.jsonl", folder / "checkpoints" / "latest") if path.exists()]
    age = time.time() - max(path.stat().st_mtime for path in touched or [folder / RECIPE])
    try:
        title, steps = _read_plan(folder)
        rows = [row for row in read_metrics(folder) if "validation_nats" in row]
    except (ValueError, OSError) as error:
        return RunOverview(name, "unreadable", None, step, None, None, size, age, problem=str(error))
    nats = float(rows[-1]["validation_nats"]) if rows else None
    holder = holder_of(folder)
    if holder is not None:
        who = f"process {holder.pid} on {holder.host}"
        return RunOverview(name, "running", title, step, steps, nats, size, age, who)
    state: State = "finished" if step is not None and step >= steps else "stopped"
    if (folder / RECORD).is_file():
        state = "imported"
    return RunOverview(name, state, title, step, steps, nats, size, age)


def newest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint; None if there is none."""
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return max((int(name[5:]) for name in names if re.fullmatch(r"step-\d{8,}", name)), default=None)


def _read_plan(folder: Path) -> tuple[str, int]:
    """Name and number of steps of a run's recipe, without building what the recipe describes."""
    data = read_json(folder / RECIPE, MIB)
    training = data.get("training") if isinstance(data, dict) else None
    title = data.get("name") if isinstance(data, dict) else None
    steps = training.get("steps") if isinstance(training, dict) else None
    if not isinstance(title, str) or type(steps) is not int:
        raise ValueError(f"{folder / RECIPE} is damaged (it has no name and training.steps): restore it from a backup")
    return title, steps


# --- recipes


@dataclass(frozen=True)
class _ListedRecipe:
    """What is shown of a recipe."""

    name: str
    parameters: int
    steps: int
    batch_size: int
    length: int
    summary: str
    source: str


def list_recipes() -> list[_ListedRecipe]:
    """All recipes."""
    text = Path(__file__).with_name("recipe_list.json").read_text(encoding="utf-8")
    return [_ListedRecipe(**row) for row in json.loads(text)]
