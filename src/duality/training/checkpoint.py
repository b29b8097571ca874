"""Checkpoints: a folder per step, complete or absent.

    checkpoints/step-00001000/   <name>.safetensors ..., state.json, manifest.json (size and sha256 of each file)
    checkpoints/latest           the name of the newest one

A checkpoint is written into a hidden temporary folder, every file is flushed to the disk, and the folder is
renamed into place: after a crash at any moment there are whole checkpoints and hidden leftovers, which the next save
removes. A save that fails, on a full disk for example, leaves the checkpoints that were there. Reading verifies the
manifest; a damaged checkpoint is reported and the next older good one is used. Only safetensors and JSON are read:
loading cannot run code.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from duality.data.files import DISK_FULL, file_sha256, flush_to_disk, readable_size, write_atomically
from duality.protocols import Reporter

Tensors = dict[str, Tensor]
_MANIFEST = "manifest.json"
_HIDDEN = ".writing-"


@dataclass(frozen=True)
class Checkpoint:
    """What was saved at ``step``: groups of tensors and a JSON state."""

    path: Path
    step: int
    groups: dict[str, Tensors]
    state: dict[str, Any]


def save(folder: Path, step: int, groups: Mapping[str, Tensors], state: dict[str, Any], keep: int = 2) -> Path:
    """Write a checkpoint and remove all but the newest ``keep`` ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{_HIDDEN}*"):
        shutil.rmtree(leftover)
    target = folder / f"step-{step:08d}"
    temporary = folder / f"{_HIDDEN}{target.name}"
    try:
        _write(temporary, step, groups, state)
        _put_in_place(temporary, target)
        flush_to_disk(folder)
        write_atomically(folder / "latest", target.name + "\n")
        _prune(folder, step, keep)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _named(error, folder, groups) from error
    return target


def _write(temporary: Path, step: int, groups: Mapping[str, Tensors], state: dict[str, Any]) -> None:
    """Write all files of a checkpoint into a new folder and flush them."""
    temporary.mkdir()
    for name, tensors in groups.items():
        _write_tensors(temporary / f"{name}.safetensors", tensors)
    (temporary / "state.json").write_text(json.dumps({"step": step, **state}, indent=1), encoding="utf-8")
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": file_sha256(file)} for file in sorted(temporary.iterdir())
    }
    (temporary / _MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")
    for file in temporary.iterdir():
        flush_to_disk(file)
    flush_to_disk(temporary)


def _put_in_place(temporary: Path, target: Path) -> None:
    """Give a complete checkpoint its name; the same step again, after resuming from an older one, is replaced."""
    if not target.exists():
        os.replace(temporary, target)
        return
    replaced = target.with_name(f"{_HIDDEN}replaced")
    os.replace(target, replaced)
    try:
        os.replace(temporary, target)
    except OSError:
        os.replace(replaced, target)
        raise
    shutil.rmtree(replaced)


def _named(error: OSError, folder: Path, groups: Mapping[str, Tensors]) -> OSError:
    """The error with the file that it is about, and on a full disk with the room that a checkpoint needs."""
    text, place = error.strerror or str(error), error.filename or str(folder)
    if error.errno in DISK_FULL:
        needed = sum(value.nbytes for tensors in groups.values() for value in tensors.values())
        free = shutil.disk_usage(folder).free
        text = f"the disk is full: a checkpoint needs {readable_size(needed)}, and {readable_size(free)} are free"
        place = str(folder)
    return OSError(error.errno, text, place)


def _write_tensors(path: Path, tensors: Tensors) -> None:
    try:
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)
    except SafetensorError as error:  # for example a full disk
        number = re.search(r"os error (\d+)", str(error))
        text = f"cannot write the checkpoint ({error})"
        raise OSError(errno.EIO if number is None else int(number[1]), text, str(path)) from error


def _prune(folder: Path, step: int, keep: int) -> None:
    """Remove all but the newest ``keep`` up to ``step``; newer ones, from which nothing was resumed, stay.

    A folder is hidden before it is emptied, so that half a checkpoint is never visible.
    """
    older = [saved for saved in steps_saved(folder) if saved <= step]
    for old in older[:-keep]:
        hidden = folder / f"{_HIDDEN}old-{old:08d}"
        os.replace(folder / f"step-{old:08d}", hidden)
        shutil.rmtree(hidden)


def steps_saved(folder: Path) -> list[int]:
    """Steps that have a checkpoint folder, oldest first."""
    names = (path.name for path in folder.iterdir() if path.is_dir())
    return sorted(int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-\d{8,}", name))


def latest_step(folder: Path) -> int:
    """The newest step that has a checkpoint; 0 if there is none."""
    return max(steps_saved(folder), default=0) if folder.is_dir() else 0


def damage(path: Path) -> str | None:
    """The damage of the checkpoint at ``path``, or None."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        for name, expected in manifest.items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != expected["bytes"]:
                return f"{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
            if file_sha256(file) != expected["sha256"]:
                return f"{name} does not match its checksum"
        return None if "state.json" in manifest else "state.json is not in the manifest"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{_MANIFEST} cannot be read ({error})"


def load_newest(folder: Path, report: Reporter) -> Checkpoint | None:
    """The newest checkpoint that passes verification; damaged newer ones are reported. None if there is none at all."""
    steps = steps_saved(folder) if folder.is_dir() else []
    for step in reversed(steps):
        path = folder / f"step-{step:08d}"
        problem = damage(path)
        if problem is None:
            return load(path)
        report(f"checkpoint {path} is damaged ({problem}); trying the one before it")
    if steps:
        raise ValueError(
            f"no checkpoint in {folder} is intact (tried {len(steps)}): restore one from a backup, "
            "or train again into another folder"
        )
    return None


def load(path: Path) -> Checkpoint:
    """Read a checkpoint that has been verified."""
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    try:
        groups = {file.stem: load_file(file) for file in sorted(path.glob("*.safetensors"))}
    except SafetensorError as error:
        raise ValueError(f"{path} holds no valid safetensors file ({error}): use an older checkpoint") from error
    return Checkpoint(path, state["step"], groups, state)
