"""The log of a training in Weights & Biases: ``--log wandb`` (offline), ``--log wandb:online``.

Without network access nothing is lost: an offline run is a folder in ``wandb/`` of the run folder, which `wandb sync`
sends later. It is offline unless the user says otherwise, with ``--log wandb:online`` or WANDB_MODE; the project is
WANDB_PROJECT, or "duality". A run that goes on has the same id, which trackers.json keeps.

W&B numbers the rows of a run and ignores numbers that it has. The number of a row is made of its step and its kind, and
trackers.json keeps the last one.

What must hold: W&B takes no row back, so a step that was logged before an interruption is not logged a second time (it
has the same numbers, unless a setting was changed); neither console output nor code nor machine statistics are
collected.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from duality.extras import import_extra
from duality.recipes.catalogue import to_json
from duality.recipes.recipe import Recipe
from duality.runs.trackers.tracker import Row, keep, numbers_and_words, read_kept, settings_in

_NAME = "wandb"
_KINDS = ("training", "validation", "samples", "figure", "changed")  # of rows of a step, in their order
_MODES = ("offline", "online", "disabled")
_SETTINGS: dict[str, object] = {"console": "off", "silent": True, "disable_git": True, "save_code": False}
_SETTINGS |= {"x_disable_stats": True, "x_disable_meta": True, "x_save_requirements": False}


class WeightsAndBiases:
    """Writes a run of W&B; a tracker."""

    def __init__(self, mode: str = "") -> None:
        self._mode = mode or os.environ.get("WANDB_MODE", "") or "offline"
        if self._mode not in _MODES:
            raise ValueError(
                f"wandb mode {self._mode!r} (--log wandb:MODE, or WANDB_MODE): choose from {', '.join(_MODES)}"
            )
        self._library = import_extra("wandb", "--log wandb", "wandb")

    def start(self, recipe: Recipe, folder: Path, step: int) -> None:
        """Begin the run, or continue that of the run folder."""
        self._folder, kept = folder, read_kept(folder).get(_NAME, {})
        self._last = cast(int, kept.get("last", -1))
        self._run = self._library.init(
            id=str(kept.get("id") or secrets.token_hex(4)),
            resume="allow",
            mode=self._mode,
            dir=str(folder),
            project=os.environ.get("WANDB_PROJECT") or "duality",
            name=os.environ.get("WANDB_NAME") or folder.resolve().name,
            config=settings_in(to_json(recipe)),
            allow_val_change=True,
            settings=self._library.Settings(**_SETTINGS),
        )
        self._run.define_metric("*", step_metric="step")
        keep(folder, _NAME, id=self._run.id)

    def metrics(self, row: Row) -> None:
        """All of a row, if its step was not logged before."""
        kind = "validation" if "validation_nats" in row else "changed" if "changed" in row else "training"
        numbers, words = numbers_and_words(row)
        self._log(kind, cast(int, row["step"]), {**numbers, **words})

    def samples(self, step: int, texts: Sequence[str]) -> None:
        """The samples as a table."""
        table = self._library.Table(columns=["sample", "text"], data=[list(each) for each in enumerate(texts)])
        self._log("samples", step, {"samples": table})

    def figure(self, step: int, name: str, path: Path) -> None:
        self._log("figure", step, {f"figures/{name}": self._library.Image(str(path))})

    def close(self) -> None:
        self._run.finish()

    def _log(self, kind: str, step: int, content: dict[str, object]) -> None:
        """Log what was not logged before this training was interrupted."""
        number = step * len(_KINDS) + _KINDS.index(kind)
        if number > self._last:
            self._run.log({**content, "step": step}, step=number)
            self._last = number
            keep(self._folder, _NAME, last=number)
