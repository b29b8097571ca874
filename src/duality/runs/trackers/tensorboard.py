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
from typing import cast

from duality.extras import import_extra
from duality.recipes.catalogue import to_json
from duality.recipes.recipe import Recipe
from duality.runs.trackers.tracker import Row, numbers_and_words, read_kept, settings_in

_NAME = "tensorboard"


class TensorBoard:
    """Writes event files; a tracker."""

    def __init__(self) -> None:
        self._library = import_extra("tensorboard", "--log tensorboard", "torch.utils.tensorboard")

    def start(self, recipe: Recipe, folder: Path, step: int) -> None:
        """Write into the run folder; what is there of steps after ``step`` is hidden."""
        # From 0 if the run does not know of files that are there: all its rows will be given again. It is said in the
        # first file too, because TensorBoard takes the first such mark for a beginning, and hides nothing there.
        known, self._phase = _NAME in read_kept(folder), ""
        self._writer = self._library.SummaryWriter(str(folder / _NAME), purge_step=step + 1 if known else 0)
        if known:
            return
        content = to_json(recipe)
        for part in import_module("torch.utils.tensorboard.summary").hparams(settings_in(content), {}):
            self._writer.file_writer.add_summary(part)
        self._writer.add_text("recipe", f"```\n{json.dumps(content, indent=1)}\n```", step)
        self._writer.flush()

    def metrics(self, row: Row) -> None:
        """Numbers as curves; the phase where it changes."""
        step, (numbers, words) = cast(int, row["step"]), numbers_and_words(row)
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        for name, text in words.items():
            if name != "phase" or text != self._phase:
                self._writer.add_text(f"training/{name}", text, step)
        self._phase = words.get("phase", self._phase)
        self._writer.flush()

    def samples(self, step: int, texts: Sequence[str]) -> None:
        """Each sample as text, its lines as they are."""
        for number, text in enumerate(texts):
            self._writer.add_text(f"samples/{number}", "\n".join(f"    {line}" for line in text.splitlines()), step)
        self._writer.flush()

    def figure(self, step: int, name: str, path: Path) -> None:
        proto = import_module("tensorboard.compat.proto.summary_pb2").Summary
        content = path.read_bytes()
        width, height = struct.unpack(">II", content[16:24])  # of the first chunk of a PNG
        image = proto.Image(height=height, width=width, colorspace=4, encoded_image_string=content)
        self._writer.file_writer.add_summary(proto(value=[proto.Value(tag=f"figures/{name}", image=image)]), step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
