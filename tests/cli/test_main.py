"""The way from a command to its objective."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import duality
from duality.cli.main import main
from duality.objectives.continuous_time import ContinuousTimeBound

SOURCE = str(Path(duality.__file__).parent)
SMALL = ["data.tokenizer=bytes", "data.length=32", "backbone=nano", "training.batch_size=4"]


def test_a_command_is_near_its_objective(monkeypatch: pytest.MonkeyPatch, english: Path, tmp_path: Path) -> None:
    """At most ten frames of the library, both counted, lead from a command to its objective: a reader can follow."""
    stacks: list[list[str]] = []
    original = ContinuousTimeBound.__call__

    def call(self: ContinuousTimeBound, *arguments: Any, **options: Any) -> Any:
        frames = (Path(each.filename).relative_to(SOURCE) for each in inspect.stack(0) if SOURCE in each.filename)
        stacks.append([str(each) for each in frames])
        return original(self, *arguments, **options)

    monkeypatch.setattr(ContinuousTimeBound, "__call__", call)
    run = str(tmp_path / "run")
    assert main(["train", "duo-laptop", "--out", run, "--data", str(english), "--steps", "1", "--set", *SMALL]) == 0
    assert stacks[0][-1] == "cli/main.py"
    assert len(stacks[0]) + 1 <= 10, stacks[0]  # and the objective


WARNING = """
import sys, warnings
from duality.cli import main
from duality.evaluation import sweep

def measure_runs(*arguments, **options):
    for kind in (UserWarning, FutureWarning, RuntimeWarning):
        warnings.warn("a kernel is slow", kind)
    return []

sweep.measure_runs = measure_runs
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("options", [[], ["--debug"], ["-W", "default"]])
def test_warnings_of_packages_are_shown_only_if_they_are_asked_for(options: list[str], tmp_path: Path) -> None:
    before, after = ([], options) if options == ["--debug"] else (options, [])
    command = [sys.executable, *before, "-c", WARNING, "quality", "run", "--json", *after]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.count("a kernel is slow\n") == (3 if options else 0), done.stderr
    assert done.stdout == "[]\n"
