"""The command line in odd places: closed streams, narrow terminals, no home folder, folders that may not be read."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duality.cli.main import main
from duality.runs.listing import overviews

NOBODY = 54321  # a user without an entry among the users


def shell(command: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in which $D is the command and $1 the first argument."""
    environment = {**os.environ, "D": f"{sys.executable} -m duality", **variables}
    words = ["bash", "-c", command, "bash", *map(str, arguments)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)


@contextmanager
def without_rights() -> Iterator[None]:
    """Not as root, to whom every file is open."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_closed_streams_are_nowhere_and_no_file_gets_their_number(trained: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = shell('$D sample "$1" --steps 2 --num 1 --trace "$2" >&- 2>&-', trained, trace)
    assert done.returncode == 0
    assert len(json.loads(trace.read_text())["samples"]) == 1
    done = shell('$D runs "$1" >&-; $D sample "$1/nothing" 2>&-; echo $?', trained)
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize("command", ['$D runs "$1" | true', "$D trian 2>&1 | true", '$D runs "$1/nothing" 2>&1 | true'])
def test_a_reader_that_is_gone_needs_no_words(command: str, trained: Path) -> None:
    done = shell(f"{command}; echo ${{PIPESTATUS[0]}}", trained)
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_terminal_of_four_columns_has_help() -> None:
    done = shell("timeout 60 $D --help", COLUMNS="4")
    assert done.returncode == 0
    assert "usage:" in done.stdout


def test_an_encoding_without_a_character_shows_its_number(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("smörgåsbord", encoding="utf-8")
    done = shell('$D data show "$1"', text, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "sm\\xf6rg\\xe5sbord" in done.stdout


@pytest.mark.parametrize("arguments", [["data", "clean"], ["eval", "~"], ["data", "show", "~nobody-here/text"]])
def test_no_home_is_a_sentence(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container, whose user has no entry among the users."""

    def unknown(_uid: int) -> pwd.struct_passwd:
        raise KeyError

    for name in ("HOME", "XDG_CACHE_HOME", "DUALITY_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    try:
        code: object = main(arguments)
    except SystemExit as exit:  # the parser's own errors
        code = exit.code
    assert code == 2
    assert "home folder is not known" in capsys.readouterr().err


def test_a_folder_that_may_not_be_read_is_a_row(trained: Path) -> None:
    with tempfile.TemporaryDirectory() as home:  # the folder of pytest is closed to others
        directory = Path(home)
        os.chmod(home, 0o755)
        for name in ("checkpoints", "part", "whole"):
            shutil.copytree(trained, directory / name)
        (directory / "part" / "more").mkdir()
        closed = [directory / "checkpoints" / "checkpoints", directory / "part" / "more"]
        for place in (directory, *directory.rglob("*")):
            os.chown(place, NOBODY, NOBODY) if os.geteuid() == 0 else None
        for place in closed:
            place.chmod(0)
        with without_rights():
            checkpoints, part, whole = overviews(directory)
            with pytest.raises(PermissionError):
                overviews(closed[0])
        for place in closed:
            place.chmod(0o755)
    assert checkpoints.state == "unreadable"
    assert str(closed[0]) in str(checkpoints.problem)
    assert (part.state, part.step) == (whole.state, whole.step) == ("finished", 20)


def test_sigterm_ends_a_comparison_with_its_own_code(tmp_path: Path, english: Path) -> None:
    small = ["data.tokenizer=bytes", "data.length=32", "backbone=nano", "backbone.width=32", "training.batch_size=4"]
    arguments = ["duo-laptop", "--out", str(tmp_path / "out"), "--data", str(english), "--steps", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "duality", "compare", *arguments, "--set", *small, "training.log_every=1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "out" / "duo-laptop" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 143, messages
    assert "stopped in duo-laptop; the same command continues" in messages
