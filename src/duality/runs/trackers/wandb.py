"""The log of a training in Weights & Biases: ``--log wandb`` (offline), ``--log wandb:online``.

Without network access nothing is lost: an offline run is a folder in ``wandb/`` of the run folder, which `wandb sync`
sends later. It is offline unless the user says otherwise, with ``--log wandb:online`` or WANDB_MODE; the project is
WANDB_PROJECT, or "duality". A run that goes on has the same id, which trackers.json keeps.

What must hold: W&B takes no row back, so a step that was logged before an interruption is not logged a second time (it
has the same numbers, unless a setting was changed); neither console output nor code nor machine statistics are
collected.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from duality.recipes.recipe import Recipe
from duality.runs.trackers.tracker import Row, flat, keep, kept, numbers_in, words_in

NAME = "wandb"
PROJECT = "duality"
MODES = ("offline", "online", "disabled")
INSTALL = "pip install 'diffusion-duality[wandb]'"


class WandbRun(Protocol):
    """What is used of a run of the library."""

    id: str

    def define_metric(self, name: str, *, step_metric: str) -> object: ...
    def log(self, data: dict[str, object], step: int) -> None: ...
    def finish(self) -> None: ...


class WeightsAndBiases:
    """Writes a run of W&B; a tracker."""

    def __init__(self, mode: str = "") -> None:
        self._mode = mode or os.environ.get("WANDB_MODE", "") or "offline"
        if self._mode not in MODES:
            raise ValueError(
                f"wandb mode {self._mode!r} (--log wandb:MODE, or WANDB_MODE): choose from {', '.join(MODES)}"
            )
        try:
            self._library = import_module("wandb")
        except ImportError as error:
            raise ValueError(f"--log wandb needs wandb, which cannot be imported ({error}): {INSTALL}") from None
        self._run: WandbRun | None = None
        self._folder = Path()
        self._logged: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._rows = 0

    def start(self, recipe: Recipe, folder: Path, step: int) -> None:
        """Begin the run, or continue that of the run folder."""
        self._folder, content = folder, kept(folder, NAME)
        number = str(content.get("id") or secrets.token_hex(4))
        self._before = {} if "logged" not in content else dict(cast(dict[str, int], content["logged"]))
        self._logged = dict(self._before)
        # W&B numbers the rows of a run, and ignores numbers that it has: one more, for a row that a crash did not count
        self._rows = cast(int, content["rows"]) + 1 if "rows" in content else 0
        run: WandbRun = self._library.init(
            id=number,
            resume="allow",
            mode=self._mode,
            dir=str(folder),
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=os.environ.get("WANDB_NAME") or folder.resolve().name,
            config=flat(recipe),
            allow_val_change=True,
            settings=self._library.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
                x_save_requirements=False,
            ),
        )
        run.define_metric("*", step_metric="step")
        self._run = run
        self._keep(number)

    def metrics(self, row: Row) -> None:
        """All of a row, if its step was not logged before."""
        self._log("validation" if "validation_nats" in row else "training", row, {**numbers_in(row), **words_in(row)})

    def samples(self, step: int, texts: Sequence[str]) -> None:
        """The samples as a table."""
        table = self._library.Table(columns=["sample", "text"], data=[list(each) for each in enumerate(texts)])
        self._log("samples", {"step": step}, {"samples": table})

    def figure(self, step: int, name: str, path: Path) -> None:
        """A picture."""
        self._send({f"figures/{name}": self._library.Image(str(path)), "step": step})

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish()

    def _log(self, kind: str, row: Row, content: dict[str, object]) -> None:
        """Log what is not of a step whose ``kind`` of row was logged before this training was interrupted."""
        step = cast(int, row["step"])
        if step <= self._before.get(kind, -1):
            return
        self._logged[kind] = step
        self._send({**content, "step": step})

    def _send(self, content: dict[str, object]) -> None:
        """Log a row under the next number."""
        assert self._run is not None, "a tracker is started before it is given rows"
        self._run.log(content, step=self._rows)
        self._rows += 1
        self._keep(self._run.id)

    def _keep(self, number: str) -> None:
        keep(self._folder, NAME, {"id": number, "logged": self._logged, "rows": self._rows})
