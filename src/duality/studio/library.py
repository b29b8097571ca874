"""The runs that the studio shows: found below the folders that it was given, and loaded when they are needed.

A run is named by an id, the shortest end of its path that no other run has. A path from a request never reaches the
disk: an id is looked up among the runs that were found.

What must hold: a run that is trained meanwhile is loaded again when it has a newer checkpoint; one that is deleted or
damaged is refused in one sentence, and the others go on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from duality.data.jsonfiles import MIB, parse_json, read_bounded
from duality.registry import suggestion
from duality.runs.metrics import read_metrics
from duality.runs.overview import newest_step, overview, run_folders
from duality.studio.limits import Limits, Refusal

if TYPE_CHECKING:
    from duality.runs.model import Model

_SAMPLE_FILES = 200


class Library:
    """The runs below some folders, or runs themselves."""

    def __init__(self, sources: Sequence[Path], limits: Limits, device: str = "auto") -> None:
        self.sources, self.limits, self.device = tuple(sources), limits, device
        self._loaded: OrderedDict[Path, tuple[int | None, Model]] = OrderedDict()
        self._lock = threading.Lock()

    def folders(self) -> dict[str, Path]:
        """The runs by their ids."""
        found = [folder for source in self.sources for folder in sorted(run_folders(source))]
        return named(list(dict.fromkeys(folder.resolve() for folder in found)))

    def folder(self, run: str) -> Path:
        """The folder of a run."""
        found = self.folders()
        if run not in found:
            raise Refusal(404, f"there is no run {run[:80]!r} here: {suggestion(run, found)}")
        return found[run]

    def rows(self) -> list[dict[str, object]]:
        """What is known of every run without loading it."""
        return [self.row(name, folder) for name, folder in self.folders().items()]

    def row(self, name: str, folder: Path) -> dict[str, object]:
        """What is known of a run."""
        try:
            about: dict[str, object] = asdict(overview(folder, folder.parent))
        except OSError as error:  # deleted while it was looked at
            about = {"state": "unreadable", "problem": str(error)}
        about |= {"id": name, "path": str(folder)}
        if about["state"] != "unreadable" and about["step"] is not None:
            try:
                about |= described(folder)
            except (ValueError, OSError) as error:
                about |= {"state": "unreadable", "problem": str(error)}
        return about

    def model(self, run: str) -> Model:
        """The model of a run, of its newest checkpoint; the models that were not used for long are forgotten."""
        from duality.runs.model import load

        folder = self.folder(run)
        newest = newest_step(folder / "checkpoints")
        with self._lock:
            kept = self._loaded.get(folder)
            if kept is not None and kept[0] == newest:
                self._loaded.move_to_end(folder)
                return kept[1]
        try:
            model = load(folder, device=self.device)
        except (ValueError, OSError) as error:
            raise Refusal(409, f"the run {run} cannot be loaded: {' '.join(str(error).split())}") from None
        with self._lock:
            self._loaded[folder] = newest, model
            self._loaded.move_to_end(folder)
            while len(self._loaded) > self.limits.models:
                self._loaded.popitem(last=False)
        return model

    def recipe(self, run: str) -> object:
        """The recipe of a run, as it is in its folder."""
        return parsed_json(self._read(self.folder(run) / "recipe.json"))

    def metrics(self, run: str, after: int) -> list[dict[str, object]]:
        """The logged steps of a run after one."""
        folder = self.folder(run)
        try:
            return [row for row in read_metrics(folder) if row["step"] > after]
        except (ValueError, OSError) as error:
            raise Refusal(409, f"the log of {run} cannot be read: {' '.join(str(error).split())}") from None

    def samples(self, run: str, after: int) -> list[dict[str, object]]:
        """The samples that a run wrote at the steps after one."""
        files = sorted((self.folder(run) / "samples").glob("step-*.jsonl"))[-_SAMPLE_FILES:]
        found = []
        for file in files:
            step = int(file.stem.removeprefix("step-")) if file.stem.removeprefix("step-").isdecimal() else -1
            if step > after:
                rows = [parsed_json(line) for line in self._read(file).splitlines()]
                texts = [str(row.get("text", "")) for row in rows if isinstance(row, dict)]
                found.append({"step": step, "texts": texts})
        return found

    def _read(self, path: Path) -> str:
        """A file of a run."""
        try:
            return read_bounded(path, 16 * MIB).decode("utf-8")
        except (ValueError, OSError) as error:
            raise Refusal(409, f"{path.name} cannot be read: {' '.join(str(error).split())}") from None


def parsed_json(text: str) -> object:
    """JSON of a file of a run."""
    try:
        return parse_json(text.encode("utf-8"), "the file")
    except ValueError as error:
        raise Refusal(409, " ".join(str(error).split())) from None


def named(folders: Sequence[Path]) -> dict[str, Path]:
    """Folders by the shortest end of their path that is their own.

    >>> named([Path("/a/x/demo"), Path("/a/y/demo"), Path("/a/other")])
    {'x/demo': PosixPath('/a/x/demo'), 'y/demo': PosixPath('/a/y/demo'), 'other': PosixPath('/a/other')}
    """
    found: dict[str, Path] = {}
    for folder in folders:
        for parts in range(1, len(folder.parts) + 1):
            name = "/".join(folder.parts[-parts:])
            if sum(f"/{other.as_posix()}".endswith(f"/{name}") for other in folders) == 1:
                break
        found[name] = folder
    return found


def described(folder: Path) -> dict[str, object]:
    """What a run is, from its recipe, and how it can be asked to write."""
    from duality.runs.folder import read_recipe
    from duality.runs.provenance import read_identity

    recipe = read_recipe(folder)
    method = type(recipe.method).__name__
    return {
        "method": method,
        "length": recipe.data.length,
        "labels": list(read_identity(folder)["labels"]),
        "distilled": recipe.distillation is not None,
        "infills": method not in ("AR", "Plaid"),
        "generation": asdict(recipe.generation),
    }
