"""Jobs of several real processes over gloo on loopback: a list of commands that all ranks run one after another.

    python -m support.jobs '[["train", "duo-laptop", ...], ["eval", ...]]'     what each process is

One start serves many commands, because importing torch takes longer than all of them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from support.runs import ROOT

PATIENCE = 240  # seconds

# Variables for some ranks of a job.
SMALLEST_FOR_THREAD = "SUPPORT_SMALLEST_FOR_THREAD"
"""The bytes of a checkpoint that a thread writes while training goes on."""
LARGEST_FILE = "SUPPORT_LARGEST_FILE"
"""The bytes of a file from which on writing fails."""
DELAY = "SUPPORT_DELAY"
"""The seconds that a rank waits before its first command."""

# The settings of a model that trains in a second, for --set.
SMALL = (
    f"data.corpus={ROOT / 'LICENSE'}",
    "data.tokenizer=bytes",
    "data.length=16",
    "backbone=nano",
    "backbone.width=32",
    "training.batch_size=8",
    "training.log_every=1",
    "training.eval_every=0",
)

# Every process of a job has one thread, as the test process has.
SHARED = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{ROOT / 'tests'}"}


@dataclass(frozen=True)
class Ended:
    """How a job ended: the exit code and the output of each rank."""

    codes: tuple[int, ...]
    out: tuple[str, ...]
    err: tuple[str, ...]

    @property
    def errors(self) -> list[str]:
        """The lines of all ranks that are errors of duality."""
        return [line for text in self.err for line in text.splitlines() if line.startswith("duality: ")]


def free_port() -> int:
    """A port of loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Commands = Sequence[Sequence[str]]
Variables = Mapping[str, str]
NOTHING: Mapping[int, Any] = MappingProxyType({})


def start(
    size: int, commands: Commands, each: Mapping[int, Variables] = NOTHING, differing: Mapping[int, Commands] = NOTHING
) -> list[subprocess.Popen[str]]:
    """The processes of a job; some ranks may have further variables (``each``), or other commands."""
    port = str(free_port())

    def process(rank: int) -> subprocess.Popen[str]:
        own = [list(command) for command in differing.get(rank, commands)]
        place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        place |= {"RANK": str(rank), "LOCAL_RANK": str(rank), **each.get(rank, {})}
        return subprocess.Popen(
            [sys.executable, "-m", "support.jobs", json.dumps(own)],
            env={**os.environ, **SHARED, **place},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return [process(rank) for rank in range(size)]


def ended(processes: Sequence[subprocess.Popen[str]]) -> Ended:
    """Wait for all processes of a job."""
    try:
        texts = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    codes = tuple(process.returncode for process in processes)
    return Ended(codes, tuple(out for out, _ in texts), tuple(err for _, err in texts))


def run(
    size: int, commands: Commands, each: Mapping[int, Variables] = NOTHING, differing: Mapping[int, Commands] = NOTHING
) -> Ended:
    """Run the commands in a job of ``size`` processes."""
    return ended(start(size, commands, each, differing))


def torchrun(size: int, *arguments: str) -> list[str]:
    """The command that starts a job as a user does."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return [*launcher, *arguments]


def losses(folder: Path) -> list[tuple[int, float, float]]:
    """Step, loss and gradient norm of every logged step of a run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row["gradient_norm"]) for row in rows if "loss" in row]


def work(commands: Sequence[Sequence[str]]) -> int:
    """What a process of a job does: all commands, until one of them fails."""
    import resource
    import time
    from contextlib import nullcontext

    from duality import ranks
    from duality.cli.main import _handle_errors, _print_errors_only, _raise_on_sigterm, _run_command, _spread
    from duality.training import checkpoint

    checkpoint.LARGE = int(os.environ.get(SMALLEST_FOR_THREAD, checkpoint.LARGE))
    if LARGEST_FILE in os.environ:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ[LARGEST_FILE]),) * 2)

    quietly = _print_errors_only if os.environ.get("RANK", "0") != "0" else nullcontext

    with _handle_errors(False) as result, _raise_on_sigterm(), ranks.join_job(), quietly():
        time.sleep(float(os.environ.get(DELAY, 0)))
        for each in commands:
            with _handle_errors(False) as own:
                own.code = _run_command(_spread(list(each)))
            result.code = own.code
            if own.code:
                break
    return result.code


if __name__ == "__main__":
    sys.exit(work(json.loads(sys.argv[1])))
