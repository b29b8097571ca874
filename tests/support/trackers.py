"""Trackers for tests: one that writes down what it is given, and one that fails."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from duality.recipes.recipe import Recipe
from duality.runs.trackers.tracker import Row

FILE = "recorded.jsonl"


class Recorder:
    """Writes everything that it is given, and the process that it is given in, into a file of the run folder."""

    folder: Path

    def start(self, recipe: Recipe, folder: Path, step: int) -> None:
        self.folder = folder
        self.write("start", recipe.name, step)

    def metrics(self, row: Row) -> None:
        self.write("metrics", dict(row))

    def samples(self, step: int, texts: Sequence[str]) -> None:
        self.write("samples", step, list(texts))

    def figure(self, step: int, name: str, path: Path) -> None:
        self.write("figure", step, name, path.stat().st_size)

    def close(self) -> None:
        self.write("close")

    def write(self, *content: object) -> None:
        with (self.folder / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps([os.getpid(), *content]) + "\n")


class Failing(Recorder):
    """A tracker whose disk is full from the third row on."""

    rows = 0

    def metrics(self, row: Row) -> None:
        self.rows += 1
        if self.rows == 3:
            raise OSError(28, "No space left on device")
        super().metrics(row)


def recorded(folder: Path) -> list[list[object]]:
    """What a recorder has written, without the processes."""
    return [json.loads(line)[1:] for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]
