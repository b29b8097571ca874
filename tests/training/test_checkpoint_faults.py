"""Every write, flush and rename of a checkpoint fails or is the last one before a kill: an intact checkpoint stays."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from support.checkpoints import load_newest
from support.faults import KILL, faults

from duality.cli.main import _explain
from duality.training import checkpoint

OLD = {"model": {"w": torch.zeros(2, 3)}, "ema": {"w": torch.zeros(2, 3)}}
NEW = {"model": {"w": torch.ones(2, 3)}, "ema": {"w": torch.ones(2, 3)}}


def content(folder: Path) -> tuple[int, float]:
    """The step and the weights of the newest checkpoint; every visible one must be intact."""
    for step in checkpoint.steps_saved(folder):
        assert checkpoint.damage(folder / f"step-{step:08d}") is None
    loaded = load_newest(folder, pytest.fail)
    assert loaded is not None
    values = {float(tensor.mean()) for group in loaded.groups.values() for tensor in group.values()}
    assert len(values) == 1
    return loaded.step, values.pop()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["disk full", "input/output error"])
@pytest.mark.parametrize("step", [1, 2], ids=["the same step", "the next step"])
def test_a_save_that_fails_anywhere_leaves_the_checkpoint_before(step: int, number: int, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"

    def begin() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint.save(folder, 1, OLD, {}, keep=1)

    begin()
    with faults(tmp_path) as tally:
        checkpoint.save(folder, step, NEW, {}, keep=1)
    assert tally.count > 10
    for place in range(1, tally.count + 1):
        begin()
        with faults(tmp_path, place, number), pytest.raises(OSError) as caught:
            checkpoint.save(folder, step, NEW, {}, keep=1)
        message = _explain(caught.value) or ""
        assert "\n" not in message
        assert str(folder) in message
        assert ("the disk is full: a checkpoint needs " in message) == (number == errno.ENOSPC)
        assert content(folder) in ((1, 0.0), (step, 1.0))
        assert not list(folder.glob(".writing-*"))  # a full disk is not made fuller
        checkpoint.save(folder, step, NEW, {}, keep=1)
        assert content(folder) == (step, 1.0)
        assert sorted(path.name for path in folder.iterdir()) == ["latest", f"step-{step:08d}"]
        assert (folder / "latest").read_text() == f"step-{step:08d}\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a process of its own to kill")
@pytest.mark.parametrize("step", [1, 2], ids=["the same step", "the next step"])
def test_a_kill_anywhere_leaves_a_checkpoint(step: int, tmp_path: Path) -> None:
    """Also between the two renames that replace a checkpoint: the only one has another name then."""
    folder, place = tmp_path / "checkpoints", 0
    while True:
        place += 1
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint.save(folder, 1, OLD, {}, keep=1)
        if not (child := os.fork()):
            with faults(tmp_path, place, KILL):
                checkpoint.save(folder, step, NEW, {}, keep=1)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        checkpoint.undo_replacement(folder)
        assert content(folder) in ((1, 0.0), (step, 1.0))
        checkpoint.save(folder, step, NEW, {}, keep=1)
        assert content(folder) == (step, 1.0)
        assert sorted(path.name for path in folder.iterdir()) == ["latest", f"step-{step:08d}"]
        if os.WIFEXITED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert place > 10


def test_a_new_checkpoint_does_not_remove_one_that_was_being_replaced(tmp_path: Path) -> None:
    """Without its name, after a kill: ``begin`` gives it back before it removes what a crash has left."""
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, 1, OLD, {}, keep=1)

    def killed(source: Path, target: Path) -> None:
        os.rename(source, target)
        raise KeyboardInterrupt  # which nothing there handles

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(folder, 1, NEW, {}, keep=1)
    assert checkpoint.steps_saved(folder) == []
    checkpoint.begin(folder, 2)
    assert content(folder) == (1, 0.0)
