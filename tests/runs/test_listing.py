"""`duality runs`, and the weights of a checkpoint other than the newest."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import session
from support.lock_holders import started, train_and_pause, wait_for
from support.runs import quiet, small_recipe

from duality.cli.main import main
from duality.models.model import load
from duality.runs.listing import overviews
from duality.training.loop import StepRecord
from duality.training.metrics import read_metrics


def test_finished_stopped_running_and_unreadable(
    trained: Path, english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(record: StepRecord) -> None:
        if record.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    directory = tmp_path / "runs"
    shutil.copytree(trained, directory / "deep" / "finished")
    session.train(small_recipe(english), directory / "stopped", report=quiet, watch=stop)
    process = started(train_and_pause, str(directory / "running"), str(tmp_path / "reached"), str(tmp_path / "never"))
    wait_for(tmp_path / "reached")
    shutil.copytree(directory / "stopped", directory / "wrong")
    (directory / "wrong" / "recipe.json").write_text("{")
    (directory / "no run").mkdir()
    (directory / "link").symlink_to(directory / "deep")

    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.name != "training.lock"}
    finished, running, stopped, wrong = overviews(directory)
    assert (finished.run, finished.state, finished.step, finished.steps) == ("deep/finished", "finished", 20, 20)
    assert finished.recipe == "duo-laptop"
    last = [row["validation_nats"] for row in read_metrics(trained) if "validation_nats" in row][-1]
    assert finished.validation_nats == last
    assert finished.bytes == sum(path.stat().st_size for path in trained.rglob("*") if path.is_file())
    assert (stopped.run, stopped.state, stopped.step, stopped.validation_nats) == ("stopped", "stopped", 3, None)
    assert (running.run, running.state, running.step) == ("running", "running", 5)
    assert running.holder is not None
    assert f"process {process.pid}" in running.holder
    assert (wrong.run, wrong.state) == ("wrong", "unreadable")
    assert wrong.problem is not None
    assert "recipe.json is damaged" in wrong.problem

    assert main(["runs", str(directory)]) == 0
    shown = capsys.readouterr().out
    assert "20 of 20" in shown
    assert f"running (process {process.pid}" in shown
    assert main(["runs", str(directory), "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == [
        "finished",
        "running",
        "stopped",
        "unreadable",
    ]
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.name != "training.lock"} == before

    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [run.state for run in overviews(directory)] == ["finished", "stopped", "stopped", "unreadable"]
    assert [run.run for run in overviews(directory / "stopped")] == [str(directory / "stopped")]


def test_nothing_to_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert "no run below" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "absent")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_the_list_imports_no_torch(tmp_path: Path) -> None:
    script = "import sys; from duality.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script, "runs", str(tmp_path)], capture_output=True, check=True)


def test_another_checkpoint_than_the_newest(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, older = load(trained), load(trained, step=10)
    assert (newest.step, older.step) == (20, 10)
    pairs = zip(newest.denoiser.parameters(), older.denoiser.parameters(), strict=True)
    assert not all(torch.equal(left, right) for left, right in pairs)
    assert main(["eval", str(trained), "--step", "10", "--limit", "2", "--draws", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 10
    assert main(["sample", str(trained), "--step", "10", "--num", "1", "--steps", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trained_steps"] == 10
    for command in ("eval", "sample"):
        assert main([command, str(trained), "--step", "11"]) == 2
        assert "has no checkpoint of step 11: there are 5, 10, 15, 20" in capsys.readouterr().err
    assert main(["eval", str(trained), "--step", "10", "--round", "1"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_the_samples_of_another_checkpoint_are_measured(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--steps 2 --num 2 --judge none --json --out"
    command = ["quality", str(trained), *flags.split(), str(tmp_path)]
    labels = {}
    for extra in ([], ["--step", "10"]):
        assert main([*command, *extra]) == 0
        rows = [row for row in json.loads(capsys.readouterr().out) if row["steps"]]
        labels[rows[0]["label"]] = rows[0].get("checkpoint")
    assert labels == {"duo": None, "duo, step 10": 10}
    assert main([*command, "--step", "11"]) == 2
    assert "has no checkpoint of step 11" in capsys.readouterr().err
