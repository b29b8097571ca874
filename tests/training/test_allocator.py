"""Freed memory stays with the process: the system hands out, and clears, no page twice."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from duality.training.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(2):  # a step: tensors of half a gigabyte in all, which are freed at its end
        held = [torch.ones(1 << 16) for _ in range(2000)]
        while held:
            held.pop()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_tensors_are_made_in_memory_that_is_there() -> None:
    def faults(choice: str) -> int:
        found = subprocess.run([sys.executable, "-c", SCRIPT, choice], capture_output=True, text=True, check=True)
        return int(found.stdout)

    plain, kept = faults("plain"), faults("keep")
    assert kept < 2_000
    assert plain > 50_000
