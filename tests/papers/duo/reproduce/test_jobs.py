"""Jobs in real processes: order, errors, a killed parent, a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from duality.files.progress import Reporter
from duality.papers.duo.reproduce.jobs import Advance, Job, execute


@dataclass(frozen=True)
class Note:
    """Appends its name to a file, and how many threads it has."""

    path: Path
    name: str

    def __call__(self, report: Reporter, advance: Advance) -> None:
        import torch

        report(f"{self.name} begins")
        with self.path.open("a") as stream:
            stream.write(f"{self.name} {torch.get_num_threads()}\n")
        advance(1.0)


@dataclass(frozen=True)
class Refuse:
    """Cannot be done."""

    def __call__(self, report: Reporter, advance: Advance) -> None:
        raise ValueError("the file is damaged: delete it")


@dataclass(frozen=True)
class Die:
    """Ends its process at once."""

    def __call__(self, report: Reporter, advance: Advance) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Stop:
    """Was stopped by a signal, and saved."""

    def __call__(self, report: Reporter, advance: Advance) -> None:
        raise KeyboardInterrupt("at step 7")


@dataclass(frozen=True)
class Sleep:
    """Says where it is, and takes long."""

    path: Path

    def __call__(self, report: Reporter, advance: Advance) -> None:
        self.path.write_text(str(os.getpid()))
        time.sleep(600)


def job(name: str, work: object, needs: tuple[str, ...] = (), cost: float = 3.0) -> Job:
    return Job(name, needs, cost, work)  # type: ignore[arg-type]


def test_a_job_begins_after_those_it_needs_and_all_costs_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said: list[str] = []
    done: list[float] = []
    jobs = [
        job("third", Note(log, "third"), ("second",)),
        job("second", Note(log, "second"), ("first",)),
        job("first", Note(log, "first")),
    ]
    execute(jobs, workers=2, threads=1, report=said.append, advance=done.append)
    assert log.read_text().split("\n")[:3] == ["first 1", "second 1", "third 1"]
    assert sum(done) == pytest.approx(9.0)
    assert [line for line in said if "begins" in line] == ["first begins", "second begins", "third begins"]
    assert [line for line in said if "jobs" in line][-1] == "3 of 3 jobs are done"


@pytest.mark.parametrize(("work", "words"), [(Refuse(), "the file is damaged"), (Die(), "exit code -9")])
def test_an_error_in_a_job_stops_the_others_and_is_raised_here(tmp_path: Path, work: object, words: str) -> None:
    place = tmp_path / "pid"
    with pytest.raises(ValueError, match=f"bad: .*{words}"):
        execute([job("long", Sleep(place)), job("bad", work)], workers=2, threads=1, report=print)
    assert not place.exists() or not alive(int(place.read_text()))


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([job("a", Refuse()), job("a", Refuse())], "one name"),
        ([job("a", Refuse(), ("b",)), job("b", Refuse(), ("a",))], "need each other"),
        ([job("a", Refuse(), ("c",))], "no job"),
    ],
)
def test_impossible_orders_are_refused_before_anything_begins(jobs: list[Job], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        execute(jobs, workers=1, threads=1, report=print)


def test_a_job_that_was_stopped_ends_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="exit code 130; the same command goes on"):
        execute([job("a", Stop())], workers=1, threads=1, report=print)
    assert "Traceback" not in capfd.readouterr().err


def test_the_processes_of_a_killed_parent_end(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    program = (
        "from pathlib import Path\n"
        "from tests.papers.duo.reproduce.test_jobs import Sleep, job\n"
        "from duality.papers.duo.reproduce.jobs import execute\n"
        "if __name__ == '__main__':\n"
        f"    execute([job('long', Sleep(Path({str(place)!r})))], workers=1, threads=1, report=print)\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    root = Path(__file__).parents[4]
    parent = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    )
    try:
        wait_for(lambda: place.exists() and place.read_text() != "")
        child = int(place.read_text())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_for(lambda: not alive(child))
    finally:
        parent.kill()


def wait_for(happened: object) -> None:
    limit = time.monotonic() + 60
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < limit, "it did not happen within a minute"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a process that has ended and that nobody waited for
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3] if Path("/proc").is_dir() else True
