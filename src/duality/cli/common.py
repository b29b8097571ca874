"""What the commands share: kinds of arguments, and a device that exists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

Device = Literal["auto", "cpu", "cuda"]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Assignments = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="set", metavar="FIELD=VALUE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
# as in ``model.SAMPLER_NAMES`` and ``model.GRID_NAMES``; written again, as help must not wait for torch
SamplerName = Literal["own", "ancestral", "analytic", "psi-constant", "psi-cap", "psi-rescale", "psi-loop", "psi-mix"]
GridName = Literal["linear", "cosine", "loop"]
Round = Annotated[int | None, tyro.conf.arg(name="round", metavar="N")]


def pick(device: Device) -> str:
    """A device that exists."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
