"""What a command prints is not lost: samples appear as they are made, and stopping it keeps those that are complete."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import session
from support.runs import small_recipe

from duality.cli import COMMANDS
from duality.cli.main import main
from duality.models.model import load
from duality.models.trace import read_trace

DUALITY = [sys.executable, "-m", "duality"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Path:
    """A run whose samples are random bytes."""
    folder = tmp_path_factory.mktemp("runs") / "bytes"
    session.train(small_recipe(english, "training.steps=1"), folder)
    return folder


def test_samples_are_printed_as_they_are_made_and_an_interrupt_keeps_them(run: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    flags = ["--num", "100000", "--steps", "20", "--batch-size", "2", "--json", "--trace", str(trace)]
    process = subprocess.Popen(
        [*DUALITY, "sample", str(run), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in several processes ignore it
    )
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(4)]  # long before the hundred thousand are complete
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    found = [json.loads(line) for line in [*first, *rest.splitlines()]]
    assert f"interrupted: {len(found)} of 100000 samples are complete" in errors
    assert "Traceback" not in errors
    expected = list[Any]()
    load(run).sample(4, steps=20, each=lambda sample: expected.append(sample.row(1)))
    assert found[:4] == expected
    assert [sample.index for sample in read_trace(trace).samples] == [row["index"] for row in found]


def test_a_reader_that_closes_the_pipe_ends_it_quietly(run: Path) -> None:
    process = subprocess.Popen(
        [*DUALITY, "sample", str(run), "--num", "100000", "--steps", "4", "--batch-size", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("--- sample 1 of 100000")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141


def test_a_terminal_gets_no_control_characters(run: Path) -> None:
    """The samples of an untrained model of bytes have all of them; those of a pipe are as they were written."""
    command = [*DUALITY, "sample", str(run), "--num", "40", "--steps", "2", "--temperature", "3"]
    plain = subprocess.run(command, capture_output=True, check=True).stdout
    controls = set(range(32)) - set(b"\n\r\t")
    assert controls & set(plain)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # the other end was closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert shown.count(b"--- sample") == 40
    assert not controls & set(shown)


def test_a_trace_is_written_to_the_end_of_a_link(run: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    assert main(["sample", str(run), "--num", "1", "--steps", "2", "--trace", str(link)]) == 0
    assert link.is_symlink()
    assert len(read_trace(target).samples) == 1


def test_an_error_leaves_an_older_trace(run: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("old")
    assert main(["sample", str(run), "--steps", "0", "--trace", str(trace)]) == 2
    assert trace.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_json_has_no_word_that_json_has_not(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sequence has no standard error."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    assert main(["eval", str(run), "--json", "--limit", "1", "--draws", "1"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["stderr"] is None
    assert found["nats_per_token"] > 0


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyError("step"), 1, "internal error: KeyError: 'step'; this is a fault of duality"),
        (RecursionError("too deep"), 1, "run the same command with --debug, and report what it prints"),
        (MemoryError(), 2, "the memory of this machine is not enough"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "take a smaller batch"),
        (OSError("the cable is out"), 2, "error: the cable is out"),
    ],
)
def test_every_exception_is_one_line(
    error: Exception, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        """Fail, as a command with a fault would."""
        raise error

    monkeypatch.setattr("duality.cli.main.COMMANDS", {**dict.fromkeys(COMMANDS), "recipes": fail})
    assert main(["recipes"]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert words in lines[0]
    with pytest.raises(type(error)):
        main(["recipes", "--debug"])


def test_runs_of_one_folder_name_are_told_apart(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        shutil.copytree(run, tmp_path / name / "demo")
    flags = ["--judge", "none", "--steps", "1,2", "--num", "2", "--temperature", "0.8,1.0"]
    assert main(["quality", "first/demo", "second/demo", "--out", "both", *flags]) == 0
    table = capsys.readouterr().out
    assert "first/demo" in table
    assert "second/demo" in table
    for name in ("first", "second"):
        assert main(["quality", f"{name}/demo", "--out", f"{name}-table", *flags]) == 0
    capsys.readouterr()
    assert main(["plot", "first-table", "second-table"]) == 0
    table = capsys.readouterr().out
    assert "first/demo" in table
    assert "second/demo" in table
