"""Books of Project Gutenberg as plain text without typesetting.

The books have hard line breaks at about 70 columns, blank lines between paragraphs, a title in brackets in the first
line and, in one of them, the licence of the file at the end. A language model should learn to write prose, not the
line breaks of an edition, so a paragraph becomes one line:

    [Emma by Jane Austen 1816]          ->      CHAPTER I
                                                Emma Woodhouse, handsome, clever, and rich, with ...
    CHAPTER I

    Emma Woodhouse, handsome, clever,
    and rich, with ...

What must hold: apart from the title line, the licence and white space, no character is added, lost or
changed.
"""

from __future__ import annotations

from itertools import groupby

LICENCE_STARTS = (
    "End of Project Gutenberg",
    "End of the Project Gutenberg",
    "*** END OF THE PROJECT GUTENBERG",
)


def clean_book(text: str) -> str:
    """The book with one paragraph per line and single spaces, without the title line and the licence."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    first = next((number for number, line in enumerate(lines) if line), 0)
    if lines[first].startswith("[") and lines[first].endswith("]"):
        lines[first] = ""
    end = next((number for number, line in enumerate(lines) if line.startswith(LICENCE_STARTS)), len(lines))
    paragraphs = [_join_lines(list(group)) for full, group in groupby(lines[:end], key=bool) if full]
    return "".join(paragraph + "\n" for paragraph in paragraphs)


def _join_lines(lines: list[str]) -> str:
    """The lines of one paragraph as one line."""
    joined = lines[0]
    for line in lines[1:]:
        # A line break after a dash or a hyphen is inside a word: "business!--Selina", "to-day".
        joined += line if joined.endswith("-") else " " + line
    return joined
