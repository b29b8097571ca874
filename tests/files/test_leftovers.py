"""What dead processes leave is removed by the next writer; what living ones write, and foreign files, stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from duality.files import atomic
from duality.files.atomic import (
    _A_DAY,
    PARTIAL,
    UNFINISHED,
    _temporary_name,
    atomic_file,
    atomic_folder,
    find_abandoned,
    write_atomically,
)

WRITER = """
import sys, time
from pathlib import Path
from duality.files.atomic import atomic_folder
from duality.files.atomic import atomic_file
with atomic_file(Path(sys.argv[1]) / "notes.json") as stream, atomic_folder(Path(sys.argv[1]) / "store") as folder:
    stream.write("half")
    (folder / "shard").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def start_writer(folder: Path) -> subprocess.Popen[str]:
    """A process that has begun to write a file and a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def write_again(folder: Path) -> None:
    write_atomically(folder / "notes.json", "whole")
    with atomic_folder(folder / "other") as target:
        (target / "shard").write_text("whole")


def test_what_a_killed_process_left_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    process = start_writer(tmp_path)
    try:
        assert len(hidden(tmp_path)) == 2
        write_again(tmp_path)
        assert len(hidden(tmp_path)) == 2  # it runs still
        process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 30
        while atomic._start_of(process.pid) != -1 and time.monotonic() < deadline:  # until it is a zombie
            time.sleep(0.01)
        (tmp_path / "other").rename(tmp_path / "first")
        write_again(tmp_path)
        assert hidden(tmp_path) == []
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "notes.json").read_text() == "whole"


def test_a_number_that_another_process_has_by_now_is_no_owner(tmp_path: Path) -> None:
    mine = _temporary_name(tmp_path / "notes.json")
    mine.write_text("half")
    assert find_abandoned(tmp_path) == []
    host, pid, start, token = mine.name.rpartition(".")[2].split("-")
    earlier = mine.with_name(f".partial-notes.json.{host}-{pid}-{int(start) - 1}-{token}")
    earlier.write_text("half")
    assert find_abandoned(tmp_path) == [earlier]
    write_atomically(tmp_path / "notes.json", "whole")
    assert hidden(tmp_path) == [mine.name]


def test_another_host_is_left_alone_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = atomic.own_process()
    monkeypatch.setattr(atomic, "own_process", lambda: f"0123abcd{process[8:]}")
    theirs = _temporary_name(tmp_path / "store")
    theirs.mkdir()
    (theirs / "shard").write_text("half")
    monkeypatch.undo()
    old = time.time() - _A_DAY - 10
    os.utime(theirs, (old, old))
    write_again(tmp_path)
    assert hidden(tmp_path) == [theirs.name]
    os.utime(theirs / "shard", (old, old))
    os.utime(theirs, (old, old))
    (tmp_path / "other").rename(tmp_path / "first")
    write_again(tmp_path)
    assert hidden(tmp_path) == []


def test_foreign_hidden_files_are_never_removed(tmp_path: Path) -> None:
    names = [".notes.json.swp", ".partial-notes.json.12", ".notes.json.1f0c53a2-9-9-9ab2c4"]
    names += [".partial-notes.json.00000000-1-2-abc", ".partial-notes.json.1f0c53a2-9-9-9ab2c4.txt"]
    old = time.time() - 10 * _A_DAY
    for name in names:
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (old, old))
    write_atomically(tmp_path / "notes.json", "whole")
    assert hidden(tmp_path) == sorted(names)


def test_an_unfinished_folder_is_continued_under_its_own_name_only(tmp_path: Path) -> None:
    machine, pid, start = atomic.own_process().split("-")
    left = tmp_path / f"{PARTIAL}store.2.{machine}-{pid}-{int(start) - 1}-9ab2c4"
    left.mkdir()
    (left / UNFINISHED).write_text("{}")
    with atomic_folder(tmp_path / "store", resume=True) as folder:
        assert list(folder.iterdir()) == []
    with atomic_folder(tmp_path / "store.2", resume=True) as folder:
        assert [path.name for path in folder.iterdir()] == [UNFINISHED]


def test_a_long_name_of_many_bytes_can_be_written_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system counts bytes, and a Chinese letter has three; two long names with one beginning are told apart."""
    name = "\u8bdd" * 80
    write_atomically(tmp_path / name, "whole")
    assert (tmp_path / name).read_text() == "whole"
    machine, pid, start = atomic.own_process().split("-")
    monkeypatch.setattr(atomic, "own_process", lambda: f"{machine}-{pid}-{int(start) - 1}")
    left = _temporary_name(tmp_path / f"{name}a")
    monkeypatch.undo()
    left.mkdir()
    (left / UNFINISHED).write_text("{}")
    with atomic_folder(tmp_path / f"{name}b", resume=True) as folder:
        assert list(folder.iterdir()) == []
    with atomic_folder(tmp_path / f"{name}a", resume=True) as folder:
        assert [path.name for path in folder.iterdir()] == [UNFINISHED]


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    with atomic_file(path) as stream:
        stream.write("whole")
    assert path.read_text() == "whole"
