"""duality: discrete diffusion language models.

A model is a process (where noise goes), a schedule (how fast), a denoiser (what was there), an objective (how it
learns) and a sampler (how it writes). Start with ``duality.protocols``.

Names are imported when they are first used, so that the command line answers ``--help`` without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Absorbing": "processes",
    "Ancestral": "samplers",
    "Bound": "objectives",
    "Clamped": "wrappers",
    "Cosine": "schedules",
    "DiT": "backbones.dit",
    "Dual": "schedules",
    "Duo": "methods",
    "LogLinear": "schedules",
    "MeanDenoiser": "denoiser",
    "Noise": "noise",
    "Recipe": "recipes",
    "TemperedBound": "objectives",
    "Temperature": "wrappers",
    "TopK": "protocols",
    "TopP": "wrappers",
    "Uniform": "processes",
    "fit": "train",
    "likelihood": "evaluate",
    "load": "run",
    "recipe": "recipes",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'duality' has no attribute {name!r}")
    return getattr(import_module(f"duality.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
