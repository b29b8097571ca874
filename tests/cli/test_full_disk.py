"""A disk that takes no more bytes: exit 2 and what to do, nothing left behind, and the command that is named works."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from support import session
from support.runs import small_recipe

SMALL = ["data.tokenizer=bytes", "data.length=32", "backbone=nano", "training.batch_size=4"]
PLAIN = ["backbone.conv=0", "backbone.activation=gelu", "backbone.mlp_ratio=4"]  # which the released layouts hold
LIMIT = 100_000  # bytes of a file; the weights have more


def run(*command: str, limited: bool = True) -> subprocess.CompletedProcess[str]:
    """A command of which no file may have more than ``LIMIT`` bytes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))

    words = [sys.executable, "-m", "duality", *command]
    return subprocess.run(words, capture_output=True, text=True, check=False, preexec_fn=limit if limited else None)


def test_what_is_written_of_a_run(english: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    session.train(small_recipe(english, "training.steps=2", *PLAIN), place)
    before = sorted(tmp_path.rglob("*"))
    for command in (
        ("export", str(place), "--layout", "duo-hf", "--out", str(tmp_path / "hf")),
        ("export", str(place), "--layout", "duo-ckpt", "--out", str(tmp_path / "model.ckpt")),
        ("publish", str(place), "--folder", str(tmp_path / "published")),
    ):
        done = run(*command)
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2, line
        assert "File too large" in line
        assert line.endswith("raise the limit of a file (ulimit -f), then give the same command again")
        assert sorted(tmp_path.rglob("*")) == before
        assert run(*command, limited=False).returncode == 0
        before = sorted(tmp_path.rglob("*"))


def test_a_training_goes_on_with_the_command_that_is_named(english: Path, tmp_path: Path) -> None:
    command = ("train", "duo-laptop", "--out", str(tmp_path / "run"), "--data", str(english), "--steps", "2")
    done = run(*command, "--set", *SMALL)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].endswith("then give the same command again, with --resume")
    assert run(*command, "--set", *SMALL, "--resume", limited=False).returncode == 0
