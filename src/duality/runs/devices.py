"""The device to compute on, by name: "auto" is a GPU if there is one, else the CPU."""

from __future__ import annotations

import torch


def device_named(name: torch.device | str) -> torch.device:
    """A device that exists on this machine."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device is {str(name)!r}: torch sees no GPU here; use device cpu, or install a CUDA build of torch"
        )
    return device
