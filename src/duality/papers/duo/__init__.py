"""The paper *The Diffusion Duality*: its index, its claims and its studies.

page        the paper's tables and figures, and the trainings that give ours (paper.json); how long these take
            (gpu_days.json); the page docs/paper.md
reproduce   the paper's claims, tried by one command
variance    the variance of gradients

What the paper says and what is tried are JSON files, with the fields of the classes that read them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Entry = dict[str, Any]  # an object of one of these files


def read_entries(name: str) -> Any:
    """The content of one of these files; a list that is a field is a tuple, as the classes have it."""

    def fields(entry: Entry) -> Entry:
        return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}

    return json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"), object_hook=fields)
