"""The lock of a run folder, with real processes: one training at a time, and a killed one stops nobody."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from support import session
from support.checkpoints import load_newest
from support.lock_holders import PAUSE, REFUSED, STEPS, started, take_turns, train_and_pause, wait_for
from support.runs import quiet, small_recipe

from duality.cli.main import main
from duality.files import lock
from duality.files.atomic import _name_of, own_process
from duality.files.lock import LOCK, _Holder, _RunLocked, holder_of, locked
from duality.training.loop import StepRecord
from duality.training.metrics import read_metrics

WRONG = '{"process": "x", "host": "x", "since": "x", "command": "x"}'


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder: time of change and bytes; the holder's sign of life is no change."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): (0 if path.name == LOCK else path.stat().st_mtime_ns, path.read_bytes())
        for path in files
    }


def holder_here() -> _Holder:
    """This process as the holder of a lock."""
    return _Holder(own_process(), socket.gethostname(), "now", "a test")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    saved = load_newest(folder / "checkpoints", quiet)
    assert saved is not None
    return {f"{group}.{name}": value for group, values in saved.groups.items() for name, value in values.items()}


def test_a_second_training_is_refused_and_a_killed_one_stops_nobody(
    english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, recipe = tmp_path / "run", small_recipe(english)
    process = started(train_and_pause, str(folder), str(tmp_path / "reached"), str(tmp_path / "never"))
    wait_for(tmp_path / "reached")
    before = content(folder)
    with pytest.raises(_RunLocked, match=rf"is being trained by process {process.pid} on {socket.gethostname()} since"):
        session.train(recipe, folder, resume=True, report=quiet)
    with pytest.raises(_RunLocked, match=rf"kill {process.pid}"):
        session.distill(tmp_path / "base", recipe, folder, resume=True, report=quiet)
    assert main(["train", "duo-laptop", "--out", str(folder), "--resume"]) == 2
    assert f"process {process.pid}" in capsys.readouterr().err
    holder = holder_of(folder)
    assert holder is not None
    assert holder.pid == process.pid
    assert content(folder) == before

    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (folder / LOCK).exists()
    assert holder_of(folder) is None
    assert session.train(recipe, folder, resume=True, report=quiet) == session.Outcome(STEPS, 0)
    assert not (folder / LOCK).exists()
    session.train(recipe, tmp_path / "whole", report=quiet)
    ours, theirs = weights(folder), weights(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_of_several_that_start_at_once_one_trains(tmp_path: Path) -> None:
    folder, reached, go_on = tmp_path / "run", tmp_path / "reached", tmp_path / "go on"
    processes = [started(train_and_pause, str(folder), str(reached), str(go_on)) for _ in range(4)]
    until = time.monotonic() + 120
    while sum(process.is_alive() for process in processes) > 1:
        assert time.monotonic() < until
        time.sleep(0.01)
    wait_for(reached)
    go_on.touch()
    for process in processes:
        process.join()
    assert sorted(process.exitcode or 0 for process in processes) == [0, REFUSED, REFUSED, REFUSED]
    assert [row["step"] for row in read_metrics(folder) if "loss" in row] == list(range(1, STEPS + 1))
    assert PAUSE < STEPS


@pytest.mark.parametrize("flock_works", [True, False])
def test_two_are_never_inside(tmp_path: Path, flock_works: bool) -> None:
    processes = [started(take_turns, str(tmp_path), flock_works, 60) for _ in range(3)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_refused_to_the_same_process_and_free_after_an_error(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(_RunLocked), locked(tmp_path):
        pass
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_lock_left_before_the_run_was_created_blocks_nobody(english: Path, tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(
        json.dumps(asdict(holder_here()) | {"process": own_process().rpartition("-")[0] + "-1"})
    )
    recipe = small_recipe(english, "training.steps=1")
    assert session.train(recipe, tmp_path, report=quiet) == session.Outcome(1, 0)


@pytest.mark.parametrize("then", ["deleted", "deleted before a checkpoint", "moved", "made again"])
def test_a_training_ends_when_its_folder_is_not_there(english: Path, tmp_path: Path, then: str) -> None:
    """Nothing more is written, also not into the folder of a training that has begun there in the meantime."""
    run, moved, theirs = tmp_path / "run", tmp_path / "moved", _name_of(os.getppid())

    def watch(record: StepRecord) -> None:
        if record.step == 7:
            run.rename(moved)
            if then.startswith("deleted"):
                shutil.rmtree(moved)
            if then == "made again":
                run.mkdir()
                shutil.copy(moved / "recipe.json", run)
                (run / LOCK).write_text(json.dumps(asdict(holder_here()) | {"process": theirs}))

    recipe = small_recipe(english, f"training.log_every={1000 if 'checkpoint' in then else 1}")
    with pytest.raises(ValueError, match=r"run was deleted, .* at step (7|10): .*--resume"):
        session.train(recipe, run, report=quiet, watch=watch)
    assert sorted(path.name for path in run.rglob("*")) == (["recipe.json", LOCK] if then == "made again" else [])
    assert moved.is_dir() == (not then.startswith("deleted"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_a_pipe_is_no_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    assert holder_of(tmp_path) is None


class TestWithoutFlock:
    """A file system that has none cannot be had in a test: the call says so instead."""

    @pytest.fixture(autouse=True)
    def _no_flock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lock, "_flock", lambda descriptor: None)

    def test_a_live_process_keeps_its_lock(self, tmp_path: Path) -> None:
        with locked(tmp_path), pytest.raises(_RunLocked, match=f"process {os.getpid()}"), locked(tmp_path):
            pass

    @pytest.mark.parametrize("gone", ["another process of this number", "no process of this number"])
    def test_a_dead_process_does_not(self, tmp_path: Path, gone: str) -> None:
        machine, pid, start = own_process().split("-")
        process = f"{machine}-{pid}-1" if gone.startswith("another") else f"{machine}-4194305-{start}"
        (tmp_path / LOCK).write_text(json.dumps(asdict(holder_here()) | {"process": process}))
        with locked(tmp_path):
            pass

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"process": 3}', '{"process": "x"}', WRONG, "[" * 60_000])
    def test_a_lock_that_cannot_be_read_says_what_to_do(self, tmp_path: Path, text: str) -> None:
        (tmp_path / LOCK).write_text(text)
        with pytest.raises(_RunLocked, match=f"delete {LOCK}"), locked(tmp_path):
            pass
        assert (tmp_path / LOCK).read_text() == text


@pytest.mark.parametrize("flock_works", [True, False])
def test_a_holder_on_another_host_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock_works: bool
) -> None:
    """flock may not reach it: it keeps the lock as long as it shows signs of life, and no longer."""
    monkeypatch.setattr(lock, "BEAT", 0.2)
    if not flock_works:
        monkeypatch.setattr(lock, "_flock", lambda descriptor: None)
    (tmp_path / LOCK).write_text(json.dumps(asdict(holder_here()) | {"host": "elsewhere", "process": "0123abcd-7-7"}))
    ended = threading.Event()
    alive = threading.Thread(target=lock._show_life, args=(tmp_path / LOCK, ended))
    alive.start()
    messages: list[str] = []
    with pytest.raises(_RunLocked, match="process 7 on elsewhere"), locked(tmp_path, messages.append):
        pass
    assert "elsewhere" in messages[0]
    ended.set()
    alive.join()
    with locked(tmp_path):
        holder = holder_of(tmp_path)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert list(tmp_path.iterdir()) == []
