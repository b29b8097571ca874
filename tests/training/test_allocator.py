"""Freed memory stays with the process: the system hands out, and clears, no page twice."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Steps that make tensors and free them all at their end: a few large ones first, after which the library would keep a
# few megabytes by itself, then half a gigabyte.
SCRIPT = """
import resource, sys, torch
from duality.training.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def step(sizes):
    held = [torch.ones(size) for size in sizes]
    while held:
        held.pop()
large, many = [(1 << 20) + 4096 * number for number in range(40)], [1 << 16] * 2000
for sizes in (large, large, many, many):
    step(sizes)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step(many)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_tensors_are_made_in_memory_that_is_there() -> None:
    def faults(choice: str) -> int:
        found = subprocess.run([sys.executable, "-c", SCRIPT, choice], capture_output=True, text=True, check=True)
        return int(found.stdout)

    assert faults("keep") < 2_000
    assert faults("plain") > 50_000
