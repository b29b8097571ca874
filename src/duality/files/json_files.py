"""JSON files that somebody else may have written: bounded in size and depth, and every error names the file.

What must hold: a file is read only if it is a regular file of at most the given size; whatever its bytes are, the
result is plain data or a ``ValueError`` (an ``OSError`` if it cannot be opened).
"""

from __future__ import annotations

import json
from pathlib import Path

from duality.files.atomic import check_file

KIB, MIB = 1 << 10, 1 << 20
DEEPEST = 32  # levels of lists and objects; a recipe has 4

RESTORE = "restore it from a backup"


def read_json(path: Path, most_bytes: int, remedy: str = RESTORE) -> object:
    """The content of a JSON file; ``remedy`` says what to do with a file that is not one."""
    return parse_json(read_bounded(path, most_bytes, remedy), str(path), remedy)


def read_bounded(path: Path, most_bytes: int, remedy: str = RESTORE) -> bytes:
    """The bytes of a regular file, which has at most ``most_bytes``."""
    check_file(path, remedy)
    with path.open("rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"{path} has more than {most_bytes:,} bytes, which is more than it can need: {remedy}")
    return data


def parse_json(data: bytes, where: str, remedy: str = RESTORE) -> object:
    """JSON as plain data; ``where`` is the name of the file for errors."""
    try:
        found: object = json.loads(data.decode("utf-8"))
        level, depth = [found], 0
        while level and depth <= DEEPEST:
            nested = (each for each in level if isinstance(each, (dict, list)))
            level = [item for each in nested for item in (each.values() if isinstance(each, dict) else each)]
            depth += 1
        if depth <= DEEPEST:
            return found
        problem = f"it is nested more than {DEEPEST} levels deep"
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is not UTF-8 text"
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError as error:  # also a number with thousands of digits
        problem = str(error)
    raise ValueError(f"{where} is damaged ({problem}): {remedy}")
