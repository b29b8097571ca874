"""Bars of what is called from Python: on a terminal and in a notebook, nowhere else, and only where they are wanted."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import ROOT

from duality.files import bars
from duality.files.progress import Pace

# Every call is between two marks on stderr, and prints on stdout what it printed before.
SCRIPT = """
import json, sys
import duality
from duality.files import bars

bars._DELAY = 0.0
run, out = sys.argv[1:]
model = duality.load(run, device="cpu")
small = ["data.tokenizer=bytes", "data.length=16", "backbone=nano", "backbone.width=32", "training.batch_size=2"]
texts = [f"text number {number} of a few" for number in range(40)]
how = {"data": texts, "steps": 3, "set": small, "device": "cpu"}
calls = {
    "train": lambda shown: duality.train("duo-laptop", out=f"{out}/{shown}", report=print, progress=shown, **how),
    "sample": lambda shown: model.sample(2, steps=3, each=lambda made: print("made"), progress=shown),
    "fill": lambda shown: model.fill("The ___ has", steps=3, progress=shown),
    "log_likelihood": lambda shown: model.log_likelihood(["a text", "another"], progress=shown),
}
for shown in (True, False):
    for name, call in calls.items():
        print(f"<{name} {shown}>", end="", file=sys.stderr, flush=True)
        call(shown)
print("<end>", file=sys.stderr)
print(json.dumps("rich" in sys.modules))
"""
LABELS = {"train": "training", "sample": "sampling", "fill": "sampling", "log_likelihood": "measuring"}


def run_on(command: list[str], *, terminal: bool) -> tuple[str, str]:
    """What a process writes on stdout, a pipe, and on stderr: a terminal, or a pipe too."""
    reading, writing = pty.openpty() if terminal else os.pipe()
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TERM": "xterm", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, env=environment)
    os.close(writing)
    shown = b""
    try:
        while part := os.read(reading, 1 << 16):
            shown += part
    except OSError:  # the other end of a terminal was closed
        pass
    os.close(reading)
    assert process.stdout is not None
    out = process.stdout.read().decode()
    process.stdout.close()
    assert process.wait() == 0, shown.decode()
    return out, shown.decode()


@pytest.mark.parametrize("terminal", [True, False])
def test_calls_from_python_show_bars_on_a_terminal_unless_they_are_not_wanted(
    trained: Path, tmp_path: Path, terminal: bool
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(trained), str(tmp_path)]
    out, shown = run_on(command, terminal=terminal)
    parts = dict(part.split(">", 1) for part in shown.split("<")[1:])
    for name, label in LABELS.items():
        assert (label in parts[f"{name} True"]) == terminal, name
        assert label not in parts[f"{name} False"], name
    assert out.count("training duo-laptop to step 3") == 2, "messages stay on stdout, also while there is a bar"
    assert out.count("made") == 4
    assert json.loads(out.splitlines()[-1]) == terminal, "rich is imported for bars alone"


def test_samples_are_written_where_stdout_leads_while_stderr_has_a_bar(trained: Path) -> None:
    command = [sys.executable, "-m", "duality", "sample", str(trained), "--num", "2", "--steps", "3", "--json"]
    out, shown = run_on(command, terminal=True)
    assert [json.loads(line)["index"] for line in out.splitlines()] == [0, 1]
    assert "sampling" in shown
    assert "tokens" not in shown


def test_work_beside_other_work_shares_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that ends, in any order, leaves the bars of the rest; with the last one the display ends."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    display, pace = bars.Bars(print), Pace("some", 3, "parts")
    outer, inner = display.showing(), display.showing()
    for each in (outer, inner):
        each.__enter__()(pace, "")
    (live,) = bars._live
    outer.__exit__(None, None, None)
    assert bars._live == [live]
    assert len(live.tasks) == 1
    inner.__exit__(None, None, None)
    assert not bars._live


@pytest.mark.slow
def test_a_notebook_shows_a_bar(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra notebook")
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebook")
    pytest.importorskip("ipykernel", reason="needs the extra notebook")
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT / "src"), path])))
    load = f"import duality\nfrom duality.files import bars\nbars._DELAY = 0.0\nmodel = duality.load({str(trained)!r})"
    stop = "def stop(frame):\n    if frame.step == 2: raise ValueError('seen')\n"
    call = "try:\n    model.sample(steps=3, watch=stop, {})\nexcept ValueError: pass"
    watched = "bars._CellBar.close = lambda bar: None"  # so that the output stays
    sources = [load, stop, call.format(""), watched, call.format(""), call.format("progress=False")]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = [[dict(output["data"]) for output in cell.outputs] for cell in cells]
    (gone,), (kept,), none = outputs[2], outputs[4], outputs[5]
    assert gone == {"text/plain": "", "text/html": ""}
    assert kept["text/html"].startswith('<progress value="0.0" max="3"></progress> sampling: 0 of 3 steps')
    assert none == []
