"""The notebook of the guides: its cells run in a kernel, and it stays small."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.runs import ROOT

NOTEBOOK = ROOT / "docs" / "guides" / "the-duality-in-ten-cells.ipynb"
SMALLER = {"STEPS = 400": "STEPS = 3", "ROUND_STEPS = 100": "ROUND_STEPS = 1", "NUM = 512": "NUM = 2"}
SMALLER |= {"steps=STEPS,": 'steps=STEPS, set=["backbone=nano", "training.batch_size=4"],'}


def test_it_is_ten_cells_of_at_most_a_page() -> None:
    assert NOTEBOOK.stat().st_size < 200_000
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 10
    assert all(len(text.splitlines()) <= 40 for text in code)
    for before, cell in zip(cells, cells[1:]):  # every cell of code is explained before it
        assert cell["cell_type"] == "markdown" or before["cell_type"] == "markdown"
    assert all(cell.get("outputs") for cell in cells if cell["cell_type"] == "code")


@pytest.mark.slow
def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer steps; a cell that fails is an error with its traceback."""
    nbclient = pytest.importorskip("nbclient", reason="needs the extra notebook")
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebook")
    pytest.importorskip("ipykernel", reason="needs the extra notebook")
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT / "src"), path])))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for text, smaller in SMALLER.items():
        found = [cell for cell in notebook.cells if text in cell.source]
        assert found, f"the notebook has no {text}"
        for cell in found:
            cell.source = cell.source.replace(text, smaller)
    nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    drawn = [
        cell
        for cell in notebook.cells
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
    ]
    assert len(drawn) == 8  # corruption is text, distillation is text
