"""What a command shows on stderr: bars on a terminal, one live display at a time; elsewhere a line every 30 seconds."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from duality.cli import console
from duality.cli.console import print_table, say
from duality.cli.main import main
from duality.files import bars, progress
from duality.files.progress import working
from duality.models.requests import SampleRequest
from duality.models.sampling import show_sampling
from duality.runs.session import show_training
from duality.samplers.generate import Frame
from duality.training.loop import StepRecord


def record(step: int) -> StepRecord:
    """A step of a training."""
    return StepRecord(
        step=step, phase="bound", loss=5.0, rate=1e-3, gradient_norm=1.0, num_tokens=100, nats_per_token=5.0
    )


def frame(step: int, steps: int) -> Frame:
    """A step of sampling."""
    return Frame(step, steps, 1.0, torch.zeros(1, 1, dtype=torch.long), 0)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal instead of stderr."""
    stream = io.StringIO()
    shown = Console(file=stream, force_terminal=True, width=100, height=20, color_system=None)
    monkeypatch.setattr(console, "stderr", shown)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    return stream


def test_short_work_prints_nothing_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with working(say, "evaluating", 10) as advance:
        advance(5)
    with show_training(say, 10) as watch:
        watch(record(1))
    assert capsys.readouterr().err == ""


def test_off_a_terminal_long_work_prints_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with show_training(say, 10) as watch:
        watch(record(4))
        watch(record(5))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: 4 of 10 steps (40 %), bound loss 5.000"
    assert lines[1].startswith("training: 5 of 10 steps (50 %), bound loss 5.000, ")
    assert lines[1].endswith(" tokens/s, 0:00 left")
    with show_sampling(say, SampleRequest(2, batch_size=1)) as show:
        for step in range(3):
            show(frame(step, 2))
    assert "sampling: 2 of 4 steps (50 %)" in capsys.readouterr().err
    with working(say, "encoding", 4e6, "bytes") as advance:
        advance(1e6, tokens=1000)
    assert "encoding: 1.0 of 4.0 MB (25 %), " in capsys.readouterr().err


def test_on_a_terminal_work_inside_work_has_a_bar_of_its_own(terminal: io.StringIO) -> None:
    """A corpus is encoded while the display of the training waits for its first step."""
    with show_training(say, 10) as watch:
        with working(say, "encoding", 4e6, "bytes") as advance:
            advance(3e6, tokens=1000)
            bars._live[0].refresh()
        watch(record(7))
        bars._live[0].refresh()
    output = terminal.getvalue()
    assert "3.0 of 4.0 MB" in output
    assert "tokens/s" in output
    assert "7 of 10 steps" in output
    assert "bound loss 5.000" in output
    assert not bars._live


@pytest.mark.usefixtures("terminal")
def test_a_display_that_fails_leaves_none_behind() -> None:
    with pytest.raises(ValueError, match="stop"), working(say, "evaluating", 10):
        raise ValueError("stop")
    assert not bars._live


def test_no_escape_sequence_of_a_name_reaches_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = "a\x1b]0;title\x07\x1b[31mb"
    say(f"read {name}\nand more")
    print_table(["run\x1b[2J"], [[name]])
    assert main(["eval", str(tmp_path / name)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("read a␛]0;title␇␛[31mb\nand more\n")
    assert all(line.isprintable() for line in (shown.out + shown.err).splitlines())
