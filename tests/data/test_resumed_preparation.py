"""A preparation that is killed is continued, and gives the same bytes as one that was not, whatever the threads."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from duality.files import atomic
from duality.files.atomic import UNFINISHED

KILLS = int(os.environ.get("DUALITY_TEST_KILLS", "8"))

PROGRAM = """
import sys, time
from pathlib import Path
from duality.data import encode
from duality.data.corpus import prepare
from duality.tokenizers.specs import BPE
encode.BATCH_CHARACTERS, encode.PART_CHARACTERS, encode.SAVED_BATCHES = 1 << 13, 1 << 11, 2
slow = encode._encode_batch
def slowly(parts, tokenizer):
    time.sleep(float(sys.argv[3]))
    return slow(parts, tokenizer)
encode._encode_batch = slowly
prepare(sys.argv[1], BPE(300), cache=Path(sys.argv[2]))
"""


def command(corpus: Path, folder: Path, pause: float) -> list[str]:
    """A process that prepares the corpus in small batches, each with a pause."""
    return [sys.executable, "-c", PROGRAM, str(corpus), str(folder), str(pause)]


def environment(threads: int) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAYON_NUM_THREADS": str(threads)}


def digest(folder: Path) -> dict[str, str]:
    """The checksums of all files of the stores."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "stores").rglob("*"))
        if path.is_file() and path.name != ".verified.json"
    }


def progress_of(folder: Path) -> str | None:
    """How far the preparation in a folder is, as it says itself."""
    for path in folder.rglob(UNFINISHED) if folder.exists() else ():
        with suppress(OSError):  # it was just replaced
            return path.read_text()
    return None


@pytest.mark.slow
def test_a_killed_preparation_is_continued_and_gives_the_same_bytes(tmp_path: Path, english: Path) -> None:
    corpus = tmp_path / "long.txt"
    corpus.write_text(english.read_text() * max(1, 1_500_000 // english.stat().st_size))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(corpus, whole, 0.0), env=environment(1), check=True)
    chance, seen = random.Random(0), list[str]()
    for _ in range(KILLS):
        process = subprocess.Popen(command(corpus, killed, 0.02), env=environment(2))
        until = time.monotonic() + 60
        while progress_of(killed) in (None, *seen[-1:]) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen.append(progress_of(killed) or "")
    subprocess.run(command(corpus, killed, 0.0), env=environment(2), check=True)
    assert digest(killed) == digest(whole)
    assert len(set(seen)) > KILLS // 2, "hardly any process was killed while it was encoding"
    assert not [path for path in (killed / "stores").iterdir() if path.name.startswith(".")]


def test_what_nobody_continues_for_a_week_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / f"{atomic.PARTIAL}x.12345678-1-1-abcdef"
    left.mkdir()
    (left / UNFINISHED).write_text("{}")
    monkeypatch.setattr(atomic, "is_running", lambda process: process != "12345678-1-1")
    with atomic.atomic_folder(tmp_path / "y"):
        assert left.exists()
    monkeypatch.setattr(atomic, "_A_DAY", -1.0)
    with atomic.atomic_folder(tmp_path / "z"):
        assert not left.exists()
