"""An extension of griffe: the docstrings of this library as Markdown.

They are plain text for readers of the source: formulas and tables are indented by four spaces, examples begin with
``>>>``. Markdown needs an empty line before an indented block, and a fence around examples. What must hold: no word is
changed or left out.
"""

from __future__ import annotations

from typing import Any

import griffe


def as_markdown(text: str) -> str:
    """The text with an empty line before each indented block, and a fence around each example."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith(">>> ") and not inside:
            lines += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        elif (
            not inside and line.startswith("    ") and lines and lines[-1].strip() and not lines[-1].startswith("    ")
        ):
            lines.append("")
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


class PlainDocstrings(griffe.Extension):
    """Applies ``as_markdown`` to every docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute that was read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
