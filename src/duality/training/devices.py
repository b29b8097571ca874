"""The device to compute on, by name: "auto" is a GPU if there is one, else the CPU. A rank of a job has its own GPU."""

from __future__ import annotations

import torch

from duality.ranks import job
from duality.training.allocator import keep_freed_memory


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
