"""metrics.jsonl: a line of JSON per logged step, validation or change, in the order of the steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from duality.data.files import json_text, write_atomically


def append_metrics(folder: Path, row: dict[str, Any]) -> None:
    """Add a row."""
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json_text(row) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl; a last line cut short by a crash is left out."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}, is damaged ({error}): restore or delete the line") from error
    return rows


def rewind_metrics(folder: Path, step: int) -> None:
    """Remove the rows after ``step``: those steps are taken again."""
    rows = [row for row in read_metrics(folder) if row["step"] <= step]
    write_atomically(folder / "metrics.jsonl", "".join(json_text(row) + "\n" for row in rows))
