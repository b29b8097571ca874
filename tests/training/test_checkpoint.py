"""Checkpoints: complete or absent, verified, and the newest good one is used."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import load_newest

from duality.training import checkpoint

GROUPS = {"model": {"w": torch.arange(6.0).view(2, 3)}, "ema": {"w": torch.ones(2, 3)}}


def saved(folder: Path, *steps: int, keep: int = 9) -> Path:
    for step in steps:
        checkpoint.save(folder, step, GROUPS, {"note": step}, keep=keep)
    return folder


def test_round_trip(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    messages: list[str] = []
    loaded = load_newest(tmp_path, messages.append)
    assert loaded is not None
    assert (loaded.step, loaded.state["note"], messages) == (3, 3, [])
    for group, tensors in GROUPS.items():
        assert torch.equal(loaded.groups[group]["w"], tensors["w"])
    assert (tmp_path / "latest").read_text() == "step-00000003\n"


def test_nothing_saved_is_none_and_old_ones_are_removed(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "absent", print) is None
    saved(tmp_path, 1, 2, 3, 4, keep=2)
    assert checkpoint.steps_saved(tmp_path) == [3, 4]


def break_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "injure",
    [
        lambda path: break_bit(path / "model.safetensors"),
        lambda path: (path / "ema.safetensors").write_bytes(b""),
        lambda path: (path / "model.safetensors").unlink(),
        lambda path: (path / "manifest.json").unlink(),
        lambda path: (path / "manifest.json").write_text("{"),
        lambda path: (path / "manifest.json").write_text("{}"),
        lambda path: break_bit(path / "state.json"),
    ],
)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    tmp_path: Path, injure: Callable[[Path], object]
) -> None:
    saved(tmp_path, 1, 2)
    injure(tmp_path / "step-00000002")
    messages: list[str] = []
    loaded = load_newest(tmp_path, messages.append)
    assert loaded is not None
    assert loaded.step == 1
    assert len(messages) == 1
    assert "step-00000002 is damaged" in messages[0]


def test_if_all_are_damaged_it_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    break_bit(tmp_path / "step-00000001" / "model.safetensors")
    with pytest.raises(ValueError, match=r"no checkpoint in .* is intact"):
        load_newest(tmp_path, print)
    assert checkpoint.steps_saved(tmp_path) == [1]


def test_damaged_newer_checkpoints_do_not_remove_a_good_one(tmp_path: Path) -> None:
    """Resumed from 10 because 15 and 20 are damaged: saving 12 keeps 10 and 12."""
    saved(tmp_path, 10, 15, 20)
    for step in (15, 20):
        break_bit(tmp_path / f"step-{step:08d}" / "model.safetensors")
    saved(tmp_path, 12, keep=2)
    good = [step for step in checkpoint.steps_saved(tmp_path) if not checkpoint.damage(tmp_path / f"step-{step:08d}")]
    assert good == [10, 12]


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "step-00000001.bak").mkdir()
    (tmp_path / "step-best").mkdir()
    assert checkpoint.steps_saved(tmp_path) == [1]
    assert checkpoint.latest_step(tmp_path) == 1


def test_a_leftover_of_a_crash_is_ignored_and_then_removed(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".writing-step-00000002")
    loaded = load_newest(tmp_path, print)
    assert loaded is not None
    assert loaded.step == 1
    saved(tmp_path, 2)
    assert not list(tmp_path.glob(".writing-*"))


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    break_bit(tmp_path / "step-00000001" / "state.json")
    saved(tmp_path, 1)
    assert checkpoint.damage(tmp_path / "step-00000001") is None


def test_manifest_lists_every_file(tmp_path: Path) -> None:
    path = saved(tmp_path, 1) / "step-00000001"
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest) == {file.name for file in path.iterdir()} - {"manifest.json"}


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    """A file of torch.save under a weight's name is refused, not executed."""
    path = saved(tmp_path, 1) / "step-00000001"
    torch.save({"w": torch.ones(1)}, path / "model.safetensors")
    with pytest.raises(ValueError, match="no valid safetensors"):
        checkpoint.load(path)


class Fault:
    """Calls to the disk, of which one fails: the call number ``place``, counted from 0."""

    def __init__(self, place: int, error: int):
        self.place, self.error, self.count = place, error, 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count - 1 == self.place:
                raise OSError(self.error, os.strerror(self.error))
            return call(*args, **options)

        return counted


DISK = [
    (os, ("fsync", "replace", "mkdir", "chmod", "unlink", "rmdir")),
    (Path, ("write_text", "open")),
    (checkpoint, ("save_file", "file_sha256")),
]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["disk full", "input/output error"])
def test_a_failure_at_any_moment_of_a_save_keeps_what_was_there(tmp_path: Path, error: int) -> None:
    """The n-th call to the disk fails, for every n: the last good checkpoint is whole, and the next save succeeds."""
    place, reached = 0, True
    while reached:
        folder, fault = saved(tmp_path / str(place), 1, 2, keep=2), Fault(place, error)
        with pytest.MonkeyPatch.context() as patch:
            for owner, names in DISK:
                for name in names:
                    patch.setattr(owner, name, fault.around(getattr(owner, name)))
            with suppress(OSError):  # one call may fail without harm: that for a folder that is there already
                checkpoint.save(folder, 3, GROUPS, {"note": 3}, keep=2)
        reached = fault.count > place
        messages: list[str] = []
        loaded = load_newest(folder, messages.append)
        assert loaded is not None
        assert loaded.step in (2, 3)
        assert messages == []
        assert checkpoint.damage(folder / "step-00000002") is None
        saved(folder, 4, keep=2)
        assert checkpoint.steps_saved(folder)[-1] == 4
        assert not list(folder.glob(".writing-*"))
        place += 1
    assert place > 20
