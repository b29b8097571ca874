"""Freed memory stays with the process: the system hands out, and clears, no page twice."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from torch import nn
from duality.training.settings import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
network = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(8)))
def step():
    network(torch.ones(4096, 64)).sum().backward()
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_step_is_computed_in_memory_that_is_there() -> None:
    def faults(choice: str) -> int:
        found = subprocess.run([sys.executable, "-c", SCRIPT, choice], capture_output=True, text=True, check=True)
        return int(found.stdout)

    # Ten steps touch some 250 000 pages; without it 4 800 to 133 000 of them were handed out anew (large pages count as
    # one), with it 0 to 2 600: other programs have the system take idle pages back.
    kept, plain = faults("keep"), faults("plain")
    assert kept < 4_000, (kept, plain)
    assert kept < plain, (kept, plain)
