"""The device to compute on, by name: "auto" is a GPU if there is one, else the CPU. A rank of a job has its own GPU.

Memory that is freed stays with the process.

A training step allocates and frees the same large tensors again and again. The C library of Linux (glibc) gives large
blocks back to the system at once, and the system clears every page when it hands it out again: a tenth of the time of a
small training was that. ``keep_freed_memory`` asks the library to keep blocks up to 32 MiB, the most it allows. Numbers
do not change. Elsewhere it does nothing.
"""

from __future__ import annotations

import ctypes
import sys

import torch

from duality.ranks import job


def device_named(name: torch.device | str) -> torch.device:
    """A device that exists on this machine; for a CPU, freed memory is kept from here on."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)
    if device == torch.device("cuda") and not job().alone:
        device = torch.device("cuda", torch.cuda.current_device())  # each rank has its own
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device is {str(name)!r}: torch sees no GPU here; use device cpu, or install a CUDA build of torch"
        )
    if device.type == "cpu":
        keep_freed_memory()
    return device


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
_LARGEST_BLOCK = 32 << 20
_MOST_KEPT = 2**31 - 1  # bytes at the end of the heap


def keep_freed_memory() -> bool:
    """Keep freed memory for the next allocation; whether the C library can."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _MOST_KEPT))
