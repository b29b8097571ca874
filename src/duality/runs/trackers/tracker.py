"""Trackers: the log of a training where people look, beside metrics.jsonl, which stays the truth.

    duality train duo-laptop --log tensorboard --log wandb             train(..., log=["tensorboard", my_tracker])

    class Printer:                                                     # in my_trackers.py: --log my_trackers:Printer
        def start(self, recipe, folder, step): ...
        def metrics(self, row): print(row)
        ...

A tracker is found by name (``TRACKERS``, or an entry point of the group ``duality.trackers``), as ``name:option``, or
as ``module:Class`` with the current folder importable. It gets every row of metrics.jsonl, the texts of the samples and
the figures. A run that is tracked for the first time gives it the rows of before too; what a tracker keeps for a run,
such as an id, is in trackers.json of the run folder.

What must hold: the numbers of a training are the same with trackers and without; a tracker that fails is named in one
line and left out from there on, and the training goes on; only rank 0 tracks; nothing is sent over a network unless the
user says so.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from duality.files.atomic import write_atomically
from duality.files.json_files import MIB, read_json
from duality.files.progress import Reporter, silent
from duality.ranks import job
from duality.recipes.recipe import Recipe
from duality.registry import Entry, suggestion
from duality.runs.trackers import TRACKERS
from duality.training.metrics import read_metrics

ENTRY_POINTS = "duality.trackers"
KEPT = "trackers.json"

Row = Mapping[str, object]


@runtime_checkable
class Tracker(Protocol):
    """Shows a training somewhere. ``step`` of ``start`` is where it goes on: what came after it is taken again."""

    def start(self, recipe: Recipe, folder: Path, step: int) -> None: ...
    def metrics(self, row: Row) -> None: ...
    def samples(self, step: int, texts: Sequence[str]) -> None: ...
    def figure(self, step: int, name: str, path: Path) -> None: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class Trackers:
    """All trackers of a training, by name; those that fail are removed."""

    by_name: dict[str, Tracker]
    report: Reporter = silent

    @contextmanager
    def tracking(self, recipe: Recipe, folder: Path, step: int) -> Iterator[None]:
        """Start the trackers for the run in ``folder``, which goes on at ``step``, and close them at the end."""
        before: dict[str, dict[str, object]] = {}
        try:
            before = kept_of_all(folder) if self.by_name else {}
        except ValueError as error:
            self.by_name.clear()
            self.report(f"warning: {error}; training goes on without trackers")
        self._each(lambda tracker: tracker.start(recipe, folder, step))
        for name, tracker in list(self.by_name.items()):
            if name not in before:
                keep(folder, name, kept(folder, name))
                self._one(name, tracker, lambda new: replay(new, folder))
        try:
            yield
        finally:
            self._each(lambda tracker: tracker.close())

    def metrics(self, row: Row) -> None:
        """Give a row of metrics to all."""
        self._each(lambda tracker: tracker.metrics(row))

    def samples(self, step: int, texts: Sequence[str]) -> None:
        """Give the texts of samples to all."""
        self._each(lambda tracker: tracker.samples(step, texts))

    def figure(self, step: int, name: str, path: Path) -> None:
        """Give a picture to all."""
        self._each(lambda tracker: tracker.figure(step, name, path))

    def _each(self, give: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.by_name.items()):
            self._one(name, tracker, give)

    def _one(self, name: str, tracker: Tracker, give: Callable[[Tracker], None]) -> None:
        """Give something to a tracker; one that fails is closed and removed."""
        try:
            give(tracker)
        except Exception as error:  # of any library, disk or server
            del self.by_name[name]
            with suppress(Exception):
                tracker.close()
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self.report(f"warning: the tracker {name} has failed ({reason}); training goes on without it")


NO_TRACKERS = Trackers({})


def replay(tracker: Tracker, folder: Path) -> None:
    """Give a new tracker the rows that the run already has."""
    for row in read_metrics(folder):
        tracker.metrics(row)


# --- by name


def trackers_named(log: Sequence[str | Tracker], report: Reporter = silent) -> Trackers:
    """The trackers that a user asks for, by name or as objects; on other ranks than 0 there are none."""
    made: dict[str, Tracker] = {}
    for each in log if job().first else ():
        name = each if isinstance(each, str) else type(each).__name__
        short = name.partition(":")[0] if name.partition(":")[0] in _names() else name
        if short in made:
            raise ValueError(f"the tracker {short} stands twice in the list: name it once")
        tracker = _made(each) if isinstance(each, str) else each
        if not isinstance(tracker, Tracker):
            raise ValueError(
                f"{name!r} is a {type(tracker).__name__}, no tracker: it needs start, metrics, samples, figure and "
                "close"
            )
        made[short] = tracker
    return Trackers(made, report)


def _names() -> dict[str, Callable[[], Entry]]:
    """The trackers that are known by name, and how their classes are found."""
    own: dict[str, Callable[[], Entry]] = {name: lambda name=name: TRACKERS[name] for name in TRACKERS}  # type: ignore[misc]
    return {**{entry.name: entry.load for entry in entry_points(group=ENTRY_POINTS)}, **own}


def _made(spec: str) -> object:
    """The tracker that ``name``, ``name:option`` or ``module:Class`` stands for."""
    first, colon, rest = spec.partition(":")
    known = _names()
    if first in known:
        entry = known[first]()
        return entry(rest) if colon else entry()
    if not (first and colon and rest):
        raise ValueError(f"no tracker {spec!r}: {suggestion(spec, known)} (a class of yours is written module:Class)")
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        found = getattr(importlib.import_module(first), rest)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"no tracker {spec!r} ({error}): name a class of a module that can be imported from {Path.cwd()}, or "
            f"choose from {', '.join(known)}"
        ) from error
    finally:
        sys.path[:] = before
    return found() if isinstance(found, type) else found


# --- what a run keeps for its trackers


def kept_of_all(folder: Path) -> dict[str, dict[str, object]]:
    """What the run in ``folder`` keeps for every tracker that it had."""
    path = folder / KEPT
    found = read_json(path, MIB) if path.exists() else {}
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ValueError(f"{path} is damaged (it has an object for each tracker): restore it, or delete it")
    return cast(dict[str, dict[str, object]], found)


def kept(folder: Path, name: str) -> dict[str, object]:
    """What the run keeps for a tracker; empty at first."""
    return kept_of_all(folder).get(name, {})


def keep(folder: Path, name: str, content: dict[str, object]) -> None:
    """Keep something for a tracker."""
    write_atomically(folder / KEPT, json.dumps({**kept_of_all(folder), name: content}, indent=1))


def flat(value: object, path: str = "") -> dict[str, str | int | float | bool]:
    """The settings of a recipe by their paths, as hyper-parameters are shown.

    >>> from duality.recipes.catalogue import recipe
    >>> flat(recipe("duo-laptop"))["training.batch_size"]
    16
    """
    if is_dataclass(value) and not isinstance(value, type):
        own = {f"{path}.type".lstrip("."): type(value).__name__} if path and not fields(value) else {}
        inside = (flat(getattr(value, each.name), f"{path}.{each.name}".lstrip(".")) for each in fields(value))
        return {**own, **{name: item for part in inside for name, item in part.items()}}
    return {path: value if isinstance(value, (str, int, float, bool)) else str(value)}


def numbers_in(row: Row) -> dict[str, float]:
    """The numbers of a row of metrics by their names, those of a validation apart: what is drawn as curves.

    >>> numbers_in({"step": 5, "phase": "bound", "loss": 2.5, "validation_nats": 3.0, "validation_stderr": None})
    {'training/loss': 2.5, 'validation/nats': 3.0}
    """
    found = {name: value for name, value in row.items() if name != "step"}
    return {
        f"validation/{name.removeprefix('validation_')}"
        if name.startswith("validation_")
        else f"training/{name}": float(value)
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def words_in(row: Row) -> dict[str, str]:
    """The texts of a row of metrics: the phase, and what of the recipe has changed."""
    words = {name: value for name, value in row.items() if isinstance(value, str)}
    changed = row.get("changed")
    return {**words, **({"changed": "; ".join(map(str, changed))} if isinstance(changed, list) else {})}
