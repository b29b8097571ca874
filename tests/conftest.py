"""Shared by all tests: the reference folder, if it is there, and one thread so that runs compare bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Reference tensors of the released implementation; kept beside the project, not in it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "golden"
    if not folder.is_dir():
        pytest.skip("no reference tensors beside the project")
    return folder
