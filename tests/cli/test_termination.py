"""SIGTERM outside training: one line, exit code 143, nothing left behind, no process that goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from duality.cli.main import _raise_on_sigterm, _Terminated, main

# A command that has begun to write into the cache and waits there, in Python or for a process that it has started.
PREPARING = """
import subprocess, sys, time
from duality.cli.main import main
from duality.data import corpus
def wait(*arguments, **options):
    {wait}
{place} = wait
sys.exit(main(sys.argv[1:]))
"""
WAIT = "print('waiting', flush=True); time.sleep(60)"
CHILD = "subprocess.run(['sh', '-c', 'echo waiting; exec sleep 60'])"


def start(program: str, cache: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DUALITY_CACHE": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.2)  # by then the command waits for its child
    return process


def children(pid: int) -> list[int]:
    """The processes that a process has started and that run."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == str(pid) and fields[0] != "Z":
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds child processes in /proc")
@pytest.mark.parametrize(("place", "wait"), [("corpus.write_store", WAIT), ("corpus.seal", CHILD)])
def test_a_preparation_that_is_ended_leaves_nothing(place: str, wait: str, tmp_path: Path, english: Path) -> None:
    cache = tmp_path / "cache"
    arguments = ("train", "duo-laptop", "--data", str(english), "--set", "data.tokenizer=bytes")
    process = start(PREPARING.format(place=place, wait=wait), cache, *arguments, "--out", str(tmp_path / "run"))
    started = children(process.pid)
    assert [path.name[:9] for path in (cache / "stores").iterdir()] == [".partial-"]
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 143
    assert messages.splitlines()[-1] == "duality: terminated"
    assert "Traceback" not in messages
    assert list((cache / "stores").iterdir()) == []
    for child in started:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_the_signal_is_handled_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(_Terminated), _raise_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with _raise_on_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_command_runs_in_another_thread(capsys: pytest.CaptureFixture[str]) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["data", "list"])))
    thread.start()
    thread.join()
    assert codes == [0]
    assert "gutenberg-prose" in capsys.readouterr().out
