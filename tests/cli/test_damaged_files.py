"""A fast version of the thousand damaged files: see tests/fuzz_files.py."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.runs import ROOT

pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra `data`")


def test_damaged_files_are_refused_or_read() -> None:
    """In a process of its own, which makes others by fork and so must not have computed anything."""
    script = [sys.executable, str(ROOT / "tests" / "fuzz_files.py"), "60"]
    done = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("all 60:")
