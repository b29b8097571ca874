"""Checkpoints that a thread writes: of the moment at which they were asked for, complete at the end, no error lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from support import session
from support.runs import quiet, small_recipe

from duality.training import checkpoint
from duality.training.checkpoint import Groups, Saver


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint is large enough for a thread."""
    monkeypatch.setattr(checkpoint, "LARGE", 0)


@pytest.mark.usefixtures("large")
def test_what_is_written_is_of_the_moment_of_the_call() -> None:
    value, may_write, written = torch.zeros(3), threading.Event(), list[torch.Tensor]()

    def write(groups: Groups) -> None:
        may_write.wait(10)
        written.append(groups["model"]["w"])

    with Saver() as saver:
        saver.save({"model": {"w": value}}, write)
        value.fill_(1.0)
        assert not written
        may_write.set()
    assert torch.equal(written[0], torch.zeros(3))


@pytest.mark.usefixtures("large")
def test_an_error_is_raised_by_the_next_checkpoint_or_at_the_end() -> None:
    def fail(_groups: Groups) -> None:
        raise OSError("the disk is full")

    saver = Saver()
    saver.save({"model": {"w": torch.zeros(1)}}, fail)
    with pytest.raises(OSError, match="full"):
        saver.save({"model": {"w": torch.zeros(1)}}, lambda groups: None)
    with pytest.raises(OSError, match="full"), saver:
        saver.save({"model": {"w": torch.zeros(1)}}, fail)

    def stop() -> None:
        with Saver() as other:
            other.save({"model": {"w": torch.zeros(1)}}, fail)
            raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        stop()


def test_a_small_checkpoint_is_written_at_once() -> None:
    threads = list[str]()
    with Saver() as saver:
        saver.save({"model": {"w": torch.zeros(1)}}, lambda groups: threads.append(threading.current_thread().name))
    assert threads == [threading.main_thread().name]


def test_a_training_with_a_thread_equals_one_without(
    tmp_path: Path, english: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_recipe(english, "training.keep=9")
    session.train(recipe, tmp_path / "at-once", report=quiet)
    monkeypatch.setattr(checkpoint, "LARGE", 0)
    session.train(recipe, tmp_path / "thread", report=quiet)
    for step in (5, 10, 15, 20):
        paths = [tmp_path / name / "checkpoints" / f"step-{step:08d}" for name in ("at-once", "thread")]
        ours, theirs = (checkpoint.load(path).groups for path in paths)
        assert ours.keys() == theirs.keys()
        for group, tensors in ours.items():
            assert all(torch.equal(value, theirs[group][name]) for name, value in tensors.items()), (step, group)


@pytest.mark.usefixtures("large")
def test_a_full_disk_ends_a_training_and_keeps_what_was_saved(
    tmp_path: Path, english: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint.save

    def full(folder: Path, step: int, *rest: object) -> Path:
        if step == 10:
            raise OSError(28, "the disk is full", str(folder))
        return save(folder, step, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(OSError, match="full"):
        session.train(small_recipe(english), tmp_path / "run", report=quiet)
    assert checkpoint.steps_saved(tmp_path / "run" / "checkpoints") == [5]
