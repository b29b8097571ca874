"""The runs that the studio shows: found below the folders that it was given, and loaded when they are needed.

Beside them it shows models alone, which `duality publish` wrote or the hub has. A run is named by an id, the shortest
end of its path that no other run has; it keeps that id as long as the studio runs. A path from a request never reaches
the disk: an id is looked up among the runs that were found.

What must hold: a run that is trained meanwhile is loaded again when it has a newer checkpoint; one that is deleted or
damaged is refused in one sentence, and the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from duality.files.json_files import MIB, parse_json, read_bounded
from duality.hub.fetch import PREFIX as HUB
from duality.hub.fetch import ModelSource, model_source
from duality.hub.package import CONFIG, PretrainedConfig, is_ours
from duality.models.folder import read_identity, read_recipe
from duality.models.model import Model, load
from duality.registry import one_line, suggestion
from duality.runs.listing import RunOverview, newest_step, run_folders
from duality.studio.schemas import LIMITS, Limits, Refusal
from duality.tokenizers.pieces import Pieces
from duality.training import Precision
from duality.training.metrics import read_metrics

Rows = list[dict[str, object]]

_SAMPLE_FILES = 200


@dataclass(frozen=True)
class Loaded:
    """A model, the checkpoint it came from, how its tokens read (which is found once), and its name in a command."""

    model: Model
    pieces: Pieces
    source: str
    newest: int | None


class Library:
    """The runs below some folders, or runs themselves; and models alone, which are fetched if the hub has them."""

    def __init__(
        self, sources: Sequence[Path], limits: Limits = LIMITS, device: str = "auto", precision: Precision = "auto"
    ) -> None:
        self.folders, self.limits, self.device, self.precision = list[Path](), limits, device, precision
        self.models: dict[Path, ModelSource] = {}
        for source in sources:
            if str(source).startswith(HUB) or is_ours(source):
                model = model_source(source)
                PretrainedConfig.read(model.folder)
                self.models[model.folder.resolve()] = model
            elif not source.is_dir():
                raise ValueError(
                    f"{source} is not a folder: give run folders, a folder that holds some, or hf:OWNER/NAME of the hub"
                )
            else:
                self.folders.append(source)
        self._loaded: dict[Path, Loaded] = {}
        self._names = {path: model.place.removeprefix("hf:") for path, model in self.models.items() if model.commit}
        self._found: dict[str, Path] = {}
        self._lock = threading.Lock()

    def find_runs(self) -> dict[str, Path]:
        """The runs by their ids, as they are on the disk now."""
        paths = [folder.resolve() for place in self.folders for folder in sorted(run_folders(place))]
        paths += self.models
        with self._lock:
            self._names = _name_folders(list(dict.fromkeys(paths)), self._names)
            known = set(paths)
            self._found = {name: folder for folder, name in self._names.items() if folder in known}
            return self._found

    def find_run(self, run: str) -> Path:
        """The folder of a run."""
        found = self._found
        if run not in found or not found[run].is_dir():
            found = self.find_runs()  # it may have appeared since
        if run not in found:
            there = suggestion(run[:80], found) if found else "none has been trained yet"
            raise Refusal(404, f"there is no run {run[:80]!r} here: {there}")
        return found[run]

    def describe_runs(self) -> Rows:
        """What is known of every run, trained or not, and of models alone, without loading them; what can be asked."""
        rows: Rows = []
        for name, folder in self.find_runs().items():
            recipe = None
            try:
                if folder in self.models:
                    config = PretrainedConfig.read(folder)
                    recipe, labels = config.recipe, config.label_names
                    about = {"state": "published", "recipe": recipe.name, "step": config.step, "steps": config.step}
                else:
                    about = asdict(RunOverview.of(folder, folder.parent))
                    if about["state"] != "unreadable" and about["step"] is not None:
                        recipe, labels = read_recipe(folder), read_identity(folder)["labels"]
            except (ValueError, OSError) as error:  # damaged, or deleted while it was looked at
                recipe, about = None, {"state": "unreadable", "step": None, "problem": one_line(error)}
            if recipe is not None:
                about |= {"method": type(recipe.method).__name__, "length": recipe.data.length, "labels": list(labels)}
                about |= {"distilled": recipe.distillation is not None, "generation": asdict(recipe.generation)}
                about["infills"] = recipe.method.process(2) is not None  # others write from left to right, or vectors
            rows.append({**about, "id": name, "path": str(folder)})
        return rows

    def load(self, run: str) -> Loaded:
        """A run with its newest checkpoint, read again if a training has replaced the checkpoint meanwhile.

        The models that were not used for long are forgotten.
        """
        folder = self.find_run(run)
        newest = newest_step(folder / "checkpoints")
        with self._lock:
            kept = self._loaded.pop(folder, None)
            if kept is not None and kept.newest == newest:
                self._loaded[folder] = kept  # the last one is the one that was used last
                return kept
        del kept  # the memory of the older weights is free before the newer ones are read
        while True:
            try:
                model = load(folder, device=self.device, precision=self.precision)
                break
            except (ValueError, OSError) as error:
                before, newest = newest, newest_step(folder / "checkpoints")
                if newest in (before, None):
                    raise Refusal(409, f"the run {run} cannot be loaded: {one_line(error)}") from None
        alone, here = self.models.get(folder), Path.cwd()
        # a run below the folder in which the studio was started has a short path in a command
        path = folder.relative_to(here) if folder.is_relative_to(here) else folder
        source = str(alone.pinned if alone is not None and alone.commit else path)
        with self._lock:
            made = self._loaded[folder] = Loaded(model, Pieces(model.tokenizer, model.mask_id), source, newest)
            gone = [path for path in self._loaded if not path.is_dir()]
            for path in [*gone, *list(self._loaded)[: max(0, len(self._loaded) - self.limits.models)]]:
                self._loaded.pop(path, None)
        return made

    def recipe(self, run: str) -> object:
        """The recipe of a run, as it is in its folder."""
        folder = self.find_run(run)
        if folder not in self.models:
            return _read_json(folder / "recipe.json")[0]
        (config,) = _read_json(folder / CONFIG)
        return config.get("recipe") if isinstance(config, dict) else None

    def metrics(self, run: str, after: int) -> Rows:
        """The logged steps of a run after one, as many as the limits allow, with all rows of the last step."""
        folder = self.find_run(run)
        try:
            log = folder / "metrics.jsonl"
            about = log.stat() if log.exists() else None
            rows = _read_log(folder, about and (about.st_ino, about.st_size, about.st_mtime_ns))
            rows = [row for row in rows if int(str(row["step"])) > after]
        except (ValueError, OSError) as error:
            raise Refusal(409, f"the log of {run} cannot be read: {one_line(error)}") from None
        end = min(len(rows), self.limits.rows)
        while 0 < end < len(rows) and rows[end]["step"] == rows[end - 1]["step"]:
            end += 1
        return rows[:end]

    def samples(self, run: str, after: int) -> Rows:
        """The samples that a run wrote at the steps after one."""
        files = sorted((self.find_run(run) / "samples").glob("step-*.jsonl"))[-_SAMPLE_FILES:]
        found: Rows = []
        for file in files:
            number = file.stem.removeprefix("step-")
            if number.isdecimal() and int(number) > after:
                texts = [str(row.get("text", "")) for row in _read_json(file) if isinstance(row, dict)]
                found.append({"step": int(number), "texts": texts})
        return found


@lru_cache(24)
def _read_log(folder: Path, _state: object) -> Rows:
    """All rows of the log of a run; a file whose state has not changed is not read again."""
    return read_metrics(folder)


def _read_json(path: Path) -> list[object]:
    """The JSON of a file of a run; of a .jsonl file that of every line."""
    try:
        data = read_bounded(path, 16 * MIB)
        return [parse_json(each, "it") for each in (data.splitlines() if path.suffix == ".jsonl" else [data])]
    except (ValueError, OSError) as error:
        raise Refusal(409, f"{path.name} cannot be read: {one_line(error)}") from None


def _name_folders(folders: Sequence[Path], known: Mapping[Path, str]) -> dict[Path, str]:
    """A name for each folder: the one that it has, or the shortest end of its path that is no other's.

    >>> _name_folders([Path("/a/x/demo"), Path("/a/y/demo"), Path("/a/other")], {})
    {PosixPath('/a/x/demo'): 'x/demo', PosixPath('/a/y/demo'): 'y/demo', PosixPath('/a/other'): 'other'}
    >>> _name_folders([Path("/a/x/demo"), Path("/a/y/demo")], {Path("/a/x/demo"): "demo"})
    {PosixPath('/a/x/demo'): 'demo', PosixPath('/a/y/demo'): 'y/demo'}
    """
    found = dict(known)
    for folder in folders:
        if folder in found:
            continue
        for parts in range(1, len(folder.parts) + 1):
            name = "/".join(folder.parts[-parts:])
            shared = sum(f"/{other.as_posix()}".endswith(f"/{name}") for other in folders if other not in known)
            if shared == 1 and name not in found.values():
                break
        found[folder] = name
    return found
