"""The file of scores, OUT/scores.json: what judges and scorers gave to the samples of a sweep, text by text.

    {"smollm2": {SHA256: [[nats, tokens], ...]}, "molecules (...)": {SHA256: {"validity": [1.0, null, ...], ...}}}

The first key names who scored, the second the content of the file of samples (its sha256). What must hold: the same
samples are not scored twice by the same judge or scorer; other samples, or another version of a scorer, are scored
anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from duality.files.atomic import write_atomically
from duality.files.progress import Reporter

FILE = "scores.json"
T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    """Scores by the name of a judge or scorer, and the sha256 of a file of samples."""

    path: Path
    entries: dict[str, dict[str, object]]

    @classmethod
    def read(cls, path: Path, report: Reporter) -> Scores:
        """The scores in ``path``; none if the file is absent or damaged."""
        try:
            entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            if not isinstance(entries, dict):
                raise ValueError(f"a {type(entries).__name__} instead of an object")
        except ValueError as error:
            report(f"{path} is damaged ({error}): judging again")
            entries = {}
        return cls(path, entries)

    def once(self, who: str, name: str, compute: Callable[[], T]) -> T:
        """The score that is kept under ``name``, or a new one, which is kept."""
        if name not in self.entries.get(who, {}):
            self.replace(who, name, compute())
        return cast(T, self.entries[who][name])

    def replace(self, who: str, name: str, score: object) -> None:
        """Keep a score, in place of what was kept under ``name``."""
        self.entries.setdefault(who, {})[name] = score
        write_atomically(self.path, json.dumps(self.entries))

    def find(self, who: str, name: str) -> object:
        """The score that is kept under ``name``; an error if there is none."""
        found = self.entries.get(who, {}).get(name)
        if found is None:
            raise ValueError(
                f"{self.path} has no scores of {who} for these samples: measure them again with `duality quality --out "
                f"{self.path.parent}`"
            )
        return found
