"""Checkpoints: a folder per step, complete or absent.

    checkpoints/step-00001000/   <name>.safetensors ..., state.json, manifest.json (size and sha256 of each file)
    checkpoints/latest           the name of the newest one

A group of tensors is one file, or the parts that each rank has written (``parallel``); state.json says so (``parts``).

A checkpoint is written into a hidden temporary folder, every file is flushed to the disk, and the folder is
renamed into place: after a crash at any moment there are whole checkpoints and hidden leftovers, which the next save
removes. One that is replaced is hidden until the new one has its name; after a crash ``undo_replacement`` gives it
back. A save that fails, on a full disk for example, leaves the checkpoints that were there. Reading verifies what is
read against the manifest, and no other file: the weights alone for a model, all groups to continue training. A damaged
checkpoint is reported and the next older good one is used.

Writing, checksums and flushing of a large checkpoint take many seconds; copying its tensors takes a fraction of one.
So ``Saver`` writes in a thread while training goes on, one checkpoint at a time: the next one waits until it is on the
disk. Small ones, below ``LARGE`` bytes, are written at once, without a copy.

What must hold: an error of the disk ends the training at the next checkpoint, or at its end, and is not lost; when a
training has ended, its last checkpoint is on the disk. A checkpoint of somebody else is data. Only safetensors and JSON
are read, so loading cannot run code; only files of the folder itself that its manifest lists; and tensors only after
their names and shapes, which stand at the beginning of a file, have been found to be those of the network (``shapes``).
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from duality.files.atomic import DISK_FULL, file_sha256, flush_to_disk, readable_size, write_atomically
from duality.files.json_files import MIB, read_json
from duality.files.progress import Reporter
from duality.training.parallel import Groups as Groups
from duality.training.parallel import Tensors as Tensors
from duality.training.parallel import num_bytes_of, outline_parts, read_parts, write_parts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

State = dict[str, Any]  # the content of state.json
Shapes = Mapping[str, tuple[int, ...]]
_MANIFEST, _STATE, _TENSORS = "manifest.json", "state.json", ".safetensors"
_HIDDEN = ".writing-"
_REPLACED = f"{_HIDDEN}replaced-"
LARGE = 64 << 20


@dataclass(frozen=True)
class Checkpoint:
    """What was saved at ``step``: groups of tensors and a JSON state."""

    path: Path
    step: int
    groups: dict[str, Tensors]
    state: State

    @property
    def parts(self) -> list[str] | None:
        """The groups that ranks have written in parts; None if each of its groups is one file."""
        return self.state.get("parts")

    @property
    def names(self) -> list[str]:
        """All groups that there are, also those that were not read."""
        whole = (name.removesuffix(_TENSORS) for name in _manifest_of(self.path) if name.endswith(_TENSORS))
        return sorted(whole) if self.parts is None else self.parts


def save(folder: Path, step: int, groups: Groups, state: State, keep: int = 2) -> Path:
    """Write a checkpoint and remove all but the newest ``keep`` ones."""
    with _named_errors(folder, groups):
        temporary = begin(folder, step)
        written: dict[int, Path] = {}
        for name, tensors in groups.items():
            file = temporary / f"{name}{_TENSORS}"
            try:
                os.link(written[id(tensors)], file)  # the same tensors take no memory a second time
            except (KeyError, OSError):  # not all file systems can
                write_tensors(file, tensors)
                written[id(tensors)] = file
        return _complete(temporary, step, state, keep)


def save_parts(
    folder: Path, step: int, groups: Groups, state: State, keep: int, connection: ProcessGroup | None
) -> None:
    """Write a checkpoint of which every rank writes its part; all ranks must call it, after ``begin`` on rank 0.

    The ranks talk over this ``connection`` alone, so a thread can do it while training goes on.
    """
    with _named_errors(folder, groups):
        temporary = folder / f"{_HIDDEN}step-{step:08d}"
        write_parts(temporary, groups, connection)
        if connection is None or connection.rank() == 0:
            _complete(temporary, step, {**state, "parts": sorted(groups)}, keep)


@contextmanager
def _named_errors(folder: Path, groups: Groups) -> Iterator[None]:
    """An error of the disk leaves nothing half written, and names the file; on a full disk also what is needed."""
    try:
        yield
    except OSError as error:
        for leftover in folder.glob(f"{_HIDDEN}step-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        text, path = error.strerror or str(error), error.filename or str(folder)
        if error.errno in DISK_FULL:
            needed, free = readable_size(num_bytes_of(groups)), readable_size(shutil.disk_usage(folder).free)
            text, path = f"the disk is full: a checkpoint needs {needed}, and {free} are free", str(folder)
        raise OSError(error.errno, text, path) from error


def begin(folder: Path, step: int) -> Path:
    """A new hidden folder for a checkpoint; what a crash has left is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    undo_replacement(folder)
    for leftover in folder.glob(f"{_HIDDEN}*"):
        shutil.rmtree(leftover)
    temporary = folder / f"{_HIDDEN}step-{step:08d}"
    temporary.mkdir()
    return temporary


def undo_replacement(folder: Path) -> None:
    """Give back its name to a checkpoint that was being replaced when a crash came, if the new one has not got it."""
    for hidden in folder.glob(f"{_REPLACED}step-*"):
        target = folder / hidden.name.removeprefix(_REPLACED)
        if not target.exists():
            os.replace(hidden, target)


def _complete(temporary: Path, step: int, state: State, keep: int) -> Path:
    """Give a checkpoint whose tensors are written its state, its manifest and its name, and remove old ones.

    All but the newest ``keep`` up to ``step`` are removed; newer ones, from which nothing was resumed, stay. The same
    step again, after resuming from an older one, is replaced. A folder is hidden before it is emptied, so that half a
    checkpoint is never visible.
    """
    folder, target = temporary.parent, temporary.parent / f"step-{step:08d}"
    (temporary / _STATE).write_text(json.dumps({"step": step, **state}, indent=1), encoding="utf-8")
    for file in temporary.glob(f"*{_TENSORS}"):
        # written for their owner alone: whoever may read the other files may read these
        os.chmod(file, (temporary / _STATE).stat().st_mode)
    files, digests = {}, dict[int, str]()
    for file in sorted(temporary.iterdir()):
        found = file.stat()
        digest = digests.get(found.st_ino) or file_sha256(file)  # a file of two names is read once
        digests[found.st_ino] = digest
        files[file.name] = {"bytes": found.st_size, "sha256": digest}
    (temporary / _MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")
    for path in (*temporary.iterdir(), temporary):
        flush_to_disk(path)
    replaced = folder / f"{_REPLACED}{target.name}"
    if target.exists():
        os.replace(target, replaced)
    try:
        os.replace(temporary, target)
    except OSError:
        if replaced.exists():
            os.replace(replaced, target)
        raise
    if replaced.exists():
        shutil.rmtree(replaced)
    flush_to_disk(folder)
    write_atomically(folder / "latest", target.name + "\n")
    for old in [saved for saved in steps_saved(folder) if saved <= step][:-keep]:
        hidden = folder / f"{_HIDDEN}old-{old:08d}"
        os.replace(folder / f"step-{old:08d}", hidden)
        shutil.rmtree(hidden)
    return target


def write_tensors(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file; what the disk refuses is an ``OSError``."""
    try:
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path, metadata)
    except SafetensorError as error:  # for example a full disk
        number = re.search(r"os error (\d+)", str(error))
        text = f"cannot write the checkpoint ({error})"
        raise OSError(errno.EIO if number is None else int(number[1]), text, str(path)) from error


def steps_saved(folder: Path) -> list[int]:
    """Steps that have a checkpoint folder, oldest first; none if there is no folder."""
    names = (path.name for path in (folder.iterdir() if folder.is_dir() else ()) if path.is_dir())
    return sorted(int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-\d{8,}", name))


def latest_step(folder: Path) -> int:
    """The newest step that has a checkpoint; 0 if there is none."""
    return max(steps_saved(folder), default=0)


def _manifest_of(path: Path) -> dict[str, tuple[int, str]]:
    """The bytes and the sha256 of a checkpoint's files; a manifest of any other form is a ``ValueError``."""
    found = read_json(path / _MANIFEST, MIB)
    if not isinstance(found, dict):
        raise ValueError(f"{_MANIFEST} is no object")
    entries = {}
    for name, line in found.items():
        if name != Path(name).name or "\\" in name or "\0" in name or name in ("", ".", ".."):
            raise ValueError(f"{_MANIFEST} lists {name!r}, which is not the name of a file in this folder")
        size, digest = (line.get("bytes"), line.get("sha256")) if isinstance(line, dict) else (None, None)
        if type(size) is not int or not isinstance(digest, str):
            raise ValueError(f"{_MANIFEST} has no size and checksum for {name}")
        entries[name] = (size, digest)
    return entries


def damage(path: Path, groups: Sequence[str] | None = None) -> str | None:
    """The damage of the checkpoint at ``path``, as far as these ``groups`` of tensors need it, or all; or None."""
    try:
        manifest = _manifest_of(path)
        unlisted = sorted(file.name for file in path.glob(f"[!.]*{_TENSORS}") if file.name not in manifest)
        for name in dict.fromkeys((*unlisted, *_files_of(path, manifest, groups), _STATE)):
            if name not in manifest:
                return f"{name} is not in {_MANIFEST}"
            file, (size, sha256) = path / name, manifest[name]
            if not file.is_file():
                return f"{name} is missing"
            if file.resolve().parent != path.resolve():
                return f"{name} is a link that leaves the folder"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes instead of {size}"
            if file_sha256(file) != sha256:
                return f"{name} does not match its checksum"
        step = _read_state(path)["step"]
        return None if path.name == f"step-{step:08d}" else f"{_STATE} is of step {step}"
    except (OSError, ValueError) as error:
        return f"{_MANIFEST} or {_STATE} cannot be read ({error})"


def _files_of(path: Path, manifest: Mapping[str, tuple[int, str]], groups: Sequence[str] | None) -> list[str]:
    """The files that hold these groups of tensors, or all files."""
    if groups is None:
        return sorted(manifest)
    parts, found = _read_state(path).get("parts") or [], list[str]()
    for group in groups:
        pattern = f"{group}{_TENSORS}"
        if group in parts:
            pattern = f"shard-*-model-{parts.index(group) + 1:05d}-of-{len(parts):05d}{_TENSORS}"
        found += fnmatch.filter(sorted(manifest), pattern) or [pattern]
    return found


def checksums(path: Path, groups: Sequence[str]) -> dict[str, str]:
    """The sha256 of the file of each of these groups that there is, or of the checksums of its parts."""
    manifest, found = _manifest_of(path), {}
    for group in groups:
        sums = [manifest[name][1] for name in _files_of(path, manifest, [group]) if name in manifest]
        if sums:
            found[group] = sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode("ascii")).hexdigest()
    return found


def _read_state(path: Path) -> State:
    """state.json of the checkpoint at ``path``, in which every checkpoint has its step.

    ``parts`` are the groups that ranks have written in parts; without it each of its groups is one file.
    """
    state = read_json(path / _STATE, MIB)
    if not isinstance(state, dict) or type(state.get("step")) is not int or state["step"] < 0:
        raise ValueError(f"{path / _STATE} has no step, which is a whole number: restore it from a backup")
    parts = state.get("parts")
    if parts is not None and not (isinstance(parts, list) and all(isinstance(each, str) for each in parts)):
        raise ValueError(f"{path / _STATE} has no list of parts: restore it from a backup")
    return state


def newest_intact(
    folder: Path, report: Reporter, groups: Sequence[str] | None = None, step: int | None = None
) -> Path | None:
    """The newest checkpoint that passes verification; damaged newer ones are reported. None if there is none at all.

    If a ``step`` is given, the checkpoint of that step, which must be kept and intact.
    """
    steps, problem = steps_saved(folder), None
    if step is not None and step not in steps:
        kept = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
        raise ValueError(
            f"{folder} has no checkpoint of step {step}: {kept}; a training keeps more of them with "
            "--set training.keep=N"
        )
    for each in reversed(steps) if step is None else (step,):
        path = folder / f"step-{each:08d}"
        problem = damage(path, groups)
        if problem is None:
            return path
        if step is not None:
            raise ValueError(f"{path} is damaged ({problem}): restore it from a backup, or choose another step")
        report(f"checkpoint {path} is damaged ({problem}); trying the one before it")
    if steps:
        raise ValueError(
            f"no checkpoint in {folder} is intact (tried {len(steps)}; the oldest: {problem}): restore one from a "
            "backup, or train again into another folder"
        )
    return None


def load(path: Path, groups: Sequence[str] | None = None, shapes: Shapes | None = None) -> Checkpoint:
    """Read a checkpoint that has been verified: these groups of tensors, or all, which have these ``shapes``."""
    state = _read_state(path)
    saved = Checkpoint(path, state["step"], {}, state)
    for group in saved.names if groups is None else groups:
        if shapes is not None:
            check_shapes(shapes_of_group(path, group), shapes)
        file = path / f"{group}{_TENSORS}"
        with _valid(file):
            if saved.parts is None:
                saved.groups[group] = load_file(file)
            else:  # put together by this process
                there = outline_parts(path, group).items()
                saved.groups[group] = {name: torch.empty_like(value, device="cpu") for name, value in there}
                read_parts(path, {group: saved.groups[group]})
    return saved


def shapes_of_group(path: Path, group: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a group's tensors in the checkpoint at ``path``; the tensors are not read."""
    parts, file = _read_state(path).get("parts"), path / f"{group}{_TENSORS}"
    with _valid(file if parts is None else path):
        if parts is not None:
            return {name: tuple(value.shape) for name, value in outline_parts(path, group).items()}
        with safe_open(file, framework="pt") as content:
            return {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}  # noqa: SIM118


@contextmanager
def _valid(file: Path) -> Iterator[None]:
    """Turn the library's error about a file into one that names it."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{file} is no valid safetensors file ({error}): use an older checkpoint") from error


def check_shapes(found: Shapes, own: Shapes, *, file: str = "the checkpoint") -> None:
    """Refuse tensors whose names or shapes are not those of the network."""
    differing = sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
    if differing:
        name = differing[0]
        shapes = [tensors.get(name, "nothing") for tensors in (found, own)]
        raise ValueError(
            f"{file} does not fit the network: {name} is {shapes[0]} in the file and {shapes[1]} in the "
            f"network ({len(differing)} tensors differ); use the recipe and the tokenizer that it was trained with"
        )


class Saver(AbstractContextManager["Saver"]):
    """Writes checkpoints, large ones in a thread; the ``with`` block ends when all are written."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[object] | None = None

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        with suppress(*(() if error is None else (Exception,))):  # the first error is the one to hear of
            self.wait()
        self._thread.shutdown()

    def save(self, groups: Groups, write: Callable[[Groups], object]) -> None:
        """``write`` the tensors as they are now, whatever the next steps change."""
        self.wait()
        if num_bytes_of(groups) < LARGE:
            write(groups)
            return
        copies = {
            group: {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
            for group, tensors in groups.items()
        }
        self._writing = self._thread.submit(write, copies)

    def wait(self) -> None:
        """Return when everything is written; raise what went wrong."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
