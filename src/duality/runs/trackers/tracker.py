"""Trackers: the log of a training in other programs, beside metrics.jsonl, which stays the truth.

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

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from duality.files.atomic import write_atomically
from duality.files.json_files import MIB, read_json
from duality.files.progress import Reporter, silent
from duality.ranks import job
from duality.recipes.config import Json
from duality.recipes.recipe import Recipe
from duality.runs.trackers import TRACKERS
from duality.training.metrics import read_metrics

KEPT = "trackers.json"
Row = Mapping[str, object]


@runtime_checkable
class Tracker(Protocol):
    """Shows a training somewhere. ``step`` of ``start`` is where it goes on: the steps after it are taken again."""

    def start(self, recipe: Recipe, folder: Path, step: int) -> None: ...
    def metrics(self, row: Row) -> None: ...
    def samples(self, step: int, texts: Sequence[str]) -> None: ...
    def figure(self, step: int, name: str, path: Path) -> None: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class Trackers:
    """All trackers of a training, by name; those that fail are removed."""

    by_name: dict[str, Tracker] = field(default_factory=dict)
    report: Reporter = silent

    @contextmanager
    def tracking(self, recipe: Recipe, folder: Path, step: int) -> Iterator[None]:
        """Start the trackers for the run in ``folder``, which goes on at ``step``, and close them at the end."""
        before: dict[str, dict[str, object]] = {}
        try:
            before = read_kept(folder) if self.by_name else {}
        except ValueError as error:
            self.by_name.clear()
            self.report(f"warning: {error}; training goes on without trackers")

        def replay(tracker: Tracker) -> None:
            for row in read_metrics(folder):
                tracker.metrics(row)

        self.each(lambda tracker: tracker.start(recipe, folder, step))
        for name in [name for name in self.by_name if name not in before]:
            keep(folder, name)
            self.each(replay, [name])
        try:
            yield
        finally:
            self.each(lambda tracker: tracker.close())

    def each(self, give: Callable[[Tracker], None], names: Sequence[str] | None = None) -> None:
        """Give something to all trackers, or to those of these names; one that fails is closed and removed."""
        for name in list(self.by_name) if names is None else names:
            try:
                give(self.by_name[name])
            except Exception as error:  # of any library, disk or server
                with suppress(Exception):
                    self.by_name.pop(name).close()
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                self.report(f"warning: the tracker {name} has failed ({reason}); training goes on without it")


def trackers_named(log: Sequence[str | Tracker], report: Reporter = silent) -> Trackers:
    """The trackers that a user asks for; on other ranks than 0 there are none.

    A name stands for a class that is called, with its option if it has one (``name:option``).
    """
    made: dict[str, Tracker] = {}
    for each in log if job().first else ():
        name, tracker = type(each).__name__, cast(object, each)
        if isinstance(each, str):
            first, _, option = each.partition(":")
            known = first in TRACKERS or first in TRACKERS.plugins()
            name, option = (first, option) if known else (each, "")
            tracker = TRACKERS.find(name, "class")
            if known or isinstance(tracker, type):
                tracker = TRACKERS.call(name, cast(Callable[..., object], tracker), *filter(None, [option]))
        if name in made:
            raise ValueError(f"the tracker {name} stands twice in the list: name it once")
        if not isinstance(tracker, Tracker):
            raise ValueError(
                f"{name!r} is a {type(tracker).__name__}, no tracker: it needs start, metrics, samples, figure and "
                "close"
            )
        made[name] = tracker
    return Trackers(made, report)


def read_kept(folder: Path) -> dict[str, dict[str, object]]:
    """What the run in ``folder`` keeps for every tracker that it had."""
    path = folder / KEPT
    found = read_json(path, MIB) if path.exists() else {}
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ValueError(f"{path} is damaged (it has an object for each tracker): restore it, or delete it")
    return cast(dict[str, dict[str, object]], found)


def keep(folder: Path, name: str, **content: object) -> None:
    """Keep something for a tracker, beside what the run keeps already."""
    found = read_kept(folder)
    write_atomically(folder / KEPT, json.dumps({**found, name: {**found.get(name, {}), **content}}, indent=1))


def settings_in(value: Json, path: str = "") -> dict[str, str | int | float | bool]:
    """The settings in the JSON of a recipe by their paths, as hyper-parameters are shown.

    >>> settings_in({"name": "mine", "training": {"steps": 5, "betas": [0.9, 0.99]}})
    {'name': 'mine', 'training.steps': 5, 'training.betas': '[0.9, 0.99]'}
    """
    if isinstance(value, dict):
        parts = (settings_in(each, f"{path}.{name}".lstrip(".")) for name, each in value.items())
        return {name: item for part in parts for name, item in part.items()}
    return {path: value if isinstance(value, (str, int, float, bool)) else json.dumps(value)}


def numbers_and_words(row: Row) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers of a row of metrics by their names, those of a validation apart, as curves are drawn; and its texts.

    The texts are the phase, and what of the recipe has changed.

    >>> numbers_and_words({"step": 5, "phase": "bound", "loss": 2.5, "validation_nats": 3.0, "validation_stderr": None})
    ({'training/loss': 2.5, 'validation/nats': 3.0}, {'phase': 'bound'})
    """
    numbers = {
        f"training/{name}".replace("training/validation_", "validation/"): float(value)
        for name, value in row.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step"
    }
    words = {name: value for name, value in row.items() if isinstance(value, str)}
    if isinstance(changed := row.get("changed"), list):
        words["changed"] = "; ".join(map(str, changed))
    return numbers, words
