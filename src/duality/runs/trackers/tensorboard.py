"""The log of a training in TensorBoard: ``--log tensorboard``, then `tensorboard --logdir runs`.

Event files are in ``tensorboard/`` of the run folder: numbers as curves, the phase, samples and the recipe as text, the
loss curve as a picture, the recipe also as hyper-parameters. What must hold: a run that goes on at a step hides what
was logged after it (TensorBoard's purge step), so no step is there twice; every row is on the disk when it was given.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from duality.recipes.catalogue import to_json
from duality.recipes.recipe import Recipe
from duality.runs.trackers.tracker import Row, flat, kept_of_all, numbers_in, words_in

NAME = FOLDER = "tensorboard"
INSTALL = "pip install 'diffusion-duality[tensorboard]'"


class FileWriter(Protocol):
    """Writes any event."""

    def add_summary(self, summary: object, global_step: int | None = None) -> None: ...


class Writer(Protocol):
    """What is used of the library's writer of event files."""

    file_writer: FileWriter

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...
    def add_text(self, tag: str, text_string: str, global_step: int) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Writes event files; a tracker."""

    def __init__(self) -> None:
        try:
            self._library = import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise ValueError(
                f"--log tensorboard needs tensorboard, which cannot be imported ({error}): {INSTALL}"
            ) from None
        self._open: Writer | None = None
        self._phase = ""

    def start(self, recipe: Recipe, folder: Path, step: int) -> None:
        """Write into the run folder; what is there of steps after ``step`` is hidden."""
        target, self._phase, known = folder / FOLDER, "", NAME in kept_of_all(folder)
        # From 0 if the run does not know of files that are there: all its rows will be given again. It is said in the
        # first file too, because TensorBoard takes the first such mark for a beginning, and hides nothing there.
        purge = step + 1 if known else 0
        self._open = self._library.SummaryWriter(str(target), purge_step=purge)
        if known:
            return
        summary = import_module("torch.utils.tensorboard.summary")
        for part in summary.hparams(flat(recipe), {}):
            self._writer.file_writer.add_summary(part)
        self._writer.add_text("recipe", f"```\n{json.dumps(to_json(recipe), indent=1)}\n```", step)
        self._writer.flush()

    def metrics(self, row: Row) -> None:
        """Numbers as curves; the phase where it changes."""
        step = cast(int, row["step"])
        for name, value in numbers_in(row).items():
            self._writer.add_scalar(name, value, step)
        for name, text in words_in(row).items():
            if name != "phase" or text != self._phase:
                self._writer.add_text(f"training/{name}", text, step)
            self._phase = text if name == "phase" else self._phase
        self._writer.flush()

    def samples(self, step: int, texts: Sequence[str]) -> None:
        """Each sample as text, its lines as they are."""
        for number, text in enumerate(texts):
            shown = "\n".join(f"    {line}" for line in text.splitlines())
            self._writer.add_text(f"samples/{number}", shown, step)
        self._writer.flush()

    def figure(self, step: int, name: str, path: Path) -> None:
        """A picture, as it is."""
        proto = import_module("tensorboard.compat.proto.summary_pb2").Summary
        content = path.read_bytes()
        width, height = struct.unpack(">II", content[16:24])  # of the first chunk of a PNG
        image = proto.Image(height=height, width=width, colorspace=4, encoded_image_string=content)
        summary = proto(value=[proto.Value(tag=f"figures/{name}", image=image)])
        self._writer.file_writer.add_summary(summary, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._open is not None:
            self._open.close()

    @property
    def _writer(self) -> Writer:
        assert self._open is not None, "a tracker is started before it is given rows"
        return self._open
