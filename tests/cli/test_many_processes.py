"""Commands in several processes: what they refuse, what they give, how they end when a rank dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support import jobs

from duality import ranks
from duality.cli.main import _spin_shortly, main
from duality.cli.train import _describe_load
from duality.ranks import Job
from duality.runs.resume import _code_version
from duality.training.parallel import layout_of
from duality.training.settings import Parallel, Strategy

pytestmark = pytest.mark.slow


def train(out: Path, steps: int, *more: str, save_every: int = 5) -> list[str]:
    """The command that trains a small model."""
    settings = ["--set", *jobs.SMALL, f"training.save_every={save_every}", *more]
    return ["train", "duo-laptop", "--out", str(out), "--steps", str(steps), *settings]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model."""
    folder = tmp_path_factory.mktemp("jobs") / "run"
    assert main(train(folder, 5)) == 0
    return folder


# --- refused


@pytest.mark.parametrize(
    ("size", "settings", "words"),
    [
        (3, (), "3 processes cannot have equal shares of a batch of 8: start 1, 2, 4 or 8 processes"),
        (2, ("data.corpus=/no/such/text",), "/no/such/text"),
    ],
    ids=["shares", "text"],
)
def test_what_cannot_be_is_refused(tmp_path: Path, size: int, settings: tuple[str, ...], words: str) -> None:
    job = jobs.run(size, [train(tmp_path / "run", 5, *settings)])
    assert set(job.codes) == {2}
    (line,) = job.errors
    assert words in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("strategy", "shard", "words"),
    [
        ("fsdp", 3, "parallel.shard is 3, and there are 4 processes: groups of equal size have 2, 4 ranks"),
        ("fsdp", 1, "parallel.shard is 1, and there are 4 processes"),
        ("ddp", 2, "parallel.shard is 2 with parallel.strategy=ddp, which divides no weights"),
    ],
)
def test_weights_that_cannot_be_divided_are_refused(strategy: Strategy, shard: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        layout_of(Parallel(strategy, shard), Job(size=4), torch.device("cpu"), needed=1, available=100)


def test_an_unknown_strategy_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train(tmp_path / "run", 5, "parallel.strategy=zero")) == 2
    assert "parallel.strategy is 'zero': it must be one of 'auto', 'ddp', 'fsdp'" in capsys.readouterr().err


def test_auto_divides_what_would_fill_half_of_the_memory() -> None:
    def strategy(needed: int, shard: int = 0) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda *_, **names: None)
            return layout_of(Parallel("auto", shard), Job(size=4), torch.device("cpu"), needed, 100).strategy

    assert strategy(50) == "ddp"
    assert strategy(51) == "fsdp"
    assert strategy(1, shard=2) == "fsdp"
    assert layout_of(Parallel(), Job(), torch.device("cpu"), 1000, 100).strategy == "single"


def test_alone_there_is_nothing_to_divide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train(tmp_path / "run", 5, "parallel.strategy=fsdp")) == 2
    assert "parallel.strategy is fsdp, and this is one process" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"])
def test_a_missing_variable_is_named(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in found.items():
        if name != missing:
            monkeypatch.setenv(name, value)
    result = subprocess.run(
        [sys.executable, "-m", "duality", *train(tmp_path / "run", 5)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert f"{missing} is not: start the processes with torchrun" in line


@pytest.mark.parametrize(("rank", "said"), [("0", True), ("1", False)])
def test_a_command_that_is_not_divided_is_refused(
    rank: str, said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert main(["recipes"]) == 2
    assert ("`duality recipes` runs in one process, and torchrun has started 2" in capsys.readouterr().err) == said
    if said:
        with pytest.raises(ValueError, match="runs in one process"):
            main(["--debug", "recipes"])  # an option of the command line may stand before the command


def test_a_rank_with_another_recipe_is_refused(tmp_path: Path) -> None:
    there = train(tmp_path / "a", 5, "training.learning_rate=0.5")
    job = jobs.run(2, [train(tmp_path / "a", 5)], differing={1: [there]})
    assert set(job.codes) == {2}
    (line,) = job.errors
    assert "rank 1 has another recipe than rank 0" in line
    assert not (tmp_path / "a").exists()


def test_a_rank_with_another_model_or_request_is_refused(run: Path, tmp_path: Path) -> None:
    assert main(train(tmp_path / "other", 2)) == 0
    evaluate, sample = ["eval", str(run), "--limit", "4"], ["sample", str(run), "--num", "2", "--steps", "2"]
    for own, there, fact in (
        (evaluate, ["eval", str(tmp_path / "other"), "--limit", "4"], "weights"),
        (sample, [*sample, "--seed", "5"], "request"),
    ):
        job = jobs.run(2, [own], differing={1: [there]})
        assert set(job.codes) == {2}
        (line,) = job.errors
        assert f"rank 1 has another {fact} than rank 0" in line
        assert job.out[0] == ""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_waits_says_so_and_ends(
    rank: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(jobs.free_port())
    place = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(ranks, "_MEETING_SECONDS", 1.0)
    assert main(["eval", str(run)]) == 2
    shown = capsys.readouterr().err
    assert f"rank {rank} of 2 waits for the others at 127.0.0.1:{port}, at most 1 s" in shown
    assert "does not meet the others" in shown
    monkeypatch.setenv("MASTER_PORT", "abc")
    assert main(["eval", str(run)]) == 2
    assert "MASTER_PORT is 'abc': a port is a number from 1 to 65535" in capsys.readouterr().err


def test_alone_nothing_is_imported_for_jobs(tmp_path: Path) -> None:
    """Neither DDP's nor FSDP's modules at the start, and no connection at the end."""
    program = (
        "import sys, torch\n"
        "import duality.cli.main, duality.runs.train, duality.evaluation.sweep\n"
        "heavy = ('torch.distributed.fsdp', 'torch.distributed.tensor', 'torch.distributed.checkpoint')\n"
        "assert not [name for name in sys.modules if name.startswith(heavy)]\n"
        "assert duality.cli.main.main(sys.argv[1:]) == 0\n"
        "assert 'torch.distributed.checkpoint' not in sys.modules\n"
        "assert not torch.distributed.is_initialized()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *train(tmp_path / "run", 2)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


class OtherThere(Job):
    """Rank 0 of two, whose rank 1 says something else about one fact."""

    def largest(self, number: int) -> int:
        return number

    def all_of(self, value: Any) -> list[Any]:
        return [value, {**value, "corpus": "another"}]

    def from_first(self, value: Any) -> Any:
        return value


def test_a_rank_with_another_text_or_version_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"rank 1 has another corpus than rank 0 \(another there, mine here\): give all"
    ):
        OtherThere(size=2).agree({"corpus": "mine", "recipe": "same"}, "give all ranks the same text")
    OtherThere(size=2).agree({"recipe": "same"}, "nothing differs")
    first, second = (_code_version() for _ in range(2))
    assert first == second
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: b"changed")
        assert _code_version() != first


# --- results


def test_evaluation_and_samples_are_those_of_one_process(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [
        ["eval", str(run), "--draws", "2", "--batch-size", "4", "--json"],
        ["sample", str(run), "--num", "7", "--batch-size", "2", "--steps", "4", "--json"],
    ]
    quality = ["quality", str(run), "--steps", "2,4", "--num", "5", "--batch-size", "2", "--judge", "none", "--out"]
    capsys.readouterr()
    for command in commands:
        assert main(command) == 0
    expected = capsys.readouterr().out
    assert main([*quality, str(tmp_path / "one")]) == 0
    job = jobs.run(2, [*commands, [*quality, str(tmp_path / "two")]])
    assert job.codes == (0, 0), job.err
    assert job.out[0].startswith(expected)
    assert job.out[1] == ""

    def rows(folder: Path) -> list[dict[str, object]]:
        found = json.loads((folder / "quality.json").read_text())
        return [{**row, "seconds_per_sample": None} for row in [*found["rows"], *found["references"]]]

    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    names = [sorted(path.name for path in folder.rglob("*")) for folder in (tmp_path / "one", tmp_path / "two")]
    assert names[0] == names[1]


def test_steps_cannot_be_watched_in_several_processes(run: Path, tmp_path: Path) -> None:
    late = {1: {jobs.DELAY: "1"}}  # rank 0, which keeps the store of the job, is the first to fail
    job = jobs.run(2, [["sample", str(run), "--trace", str(tmp_path / "trace.json")]], late)
    assert set(job.codes) == {2}
    assert len(job.errors) == 1
    assert "--trace in 2 processes" in job.errors[0]


# --- faults


def steps_taken(out: Path) -> int:
    """The last step that a run has logged."""
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines[:-1]), default=0)


def await_step(out: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Wait until a run has taken a step."""
    until = time.monotonic() + 120
    while steps_taken(out) < step:
        assert time.monotonic() < until, f"step {step} was not reached"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def ranks_of(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes that a launcher has started, by rank."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    found = {}
    for child in children:
        pairs = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        environment = dict(pair.partition(b"=")[::2] for pair in pairs)
        if b"RANK" in environment:
            found[int(environment[b"RANK"])] = int(child)
    return [found[rank] for rank in sorted(found)]


def launched(command: list[str], *options: str) -> subprocess.Popen[str]:
    """A job of two processes, started by torchrun."""
    return subprocess.Popen(
        jobs.torchrun(2, *options, "-m", "duality", *command),
        env={**os.environ, **jobs.SHARED},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_rank_ends_the_job_which_can_be_resumed(tmp_path: Path) -> None:
    out, steps = tmp_path / "run", 100_000
    job = launched(train(out, steps))
    await_step(out, 12, job)
    victim, before = ranks_of(job)[1], time.monotonic()
    os.kill(victim, signal.SIGKILL)
    _, err = job.communicate(timeout=60)
    assert time.monotonic() - before < 60
    assert job.returncode != 0
    (line,) = [line for line in err.splitlines() if line.startswith("duality: ")]
    assert f"rank 1 (process {victim}) ended without a message" in line
    last = steps_taken(out)
    assert main([*train(out, 5 * (last // 5 + 2)), "--resume"]) == 0


def test_torchrun_starts_a_job_again_by_itself(tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = launched(train(out, 150), "--max-restarts", "2")
    await_step(out, 12, job)
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    _, err = job.communicate(timeout=200)
    assert job.returncode == 0, err
    assert "resuming at step" in err
    assert [row[0] for row in jobs.losses(out)] == list(range(1, 151))


def test_sigterm_to_the_launcher_saves_and_stops(tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = launched(train(out, 100_000, save_every=100_000))
    await_step(out, 7, job)
    before = time.monotonic()
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=60)
    assert time.monotonic() - before < 30
    assert "stopped by a signal at step" in err
    saved = int(err.partition("stopped by a signal at step ")[2].partition(";")[0])
    assert (out / "checkpoints" / f"step-{saved:08d}").is_dir()
    assert steps_taken(out) >= saved - 1


def test_an_exception_of_a_rank_is_printed_by_that_rank(tmp_path: Path) -> None:
    job = jobs.run(2, [train(tmp_path / "run", 100)], {1: {"DUALITY_CACHE": "/dev/null/nothing"}})
    assert 0 not in job.codes
    (line,) = job.errors
    assert line.startswith("duality: error: rank 1: ")
    assert "/dev/null/nothing" in line


# --- one machine


def test_threads_wait_shortly_unless_the_user_has_chosen() -> None:
    chosen: dict[str, str] = {}
    _spin_shortly(chosen)
    assert chosen == {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
    for own in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "0"}):
        before = dict(own)
        _spin_shortly(own)
        assert own == before


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert _describe_load(0.3) is None
    remark = _describe_load(5.0)
    assert remark is not None
    assert "other programs use 5.0 of the 8 cores" in remark
    assert "OMP_NUM_THREADS=3" in remark
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert _describe_load(9.0) is None
