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
    "AR": "methods",
    "Absorbing": "processes",
    "Analytic": "samplers",
    "Ancestral": "samplers",
    "Autoregressive": "samplers",
    "BertMouth": "baselines",
    "Bound": "objectives",
    "CausalDenoiser": "denoiser",
    "Clamped": "wrappers",
    "Consistency": "objectives",
    "Cosine": "schedules",
    "D3PM": "methods",
    "DCD": "distillation",
    "DiT": "backbones.dit",
    "DiffusionBERT": "baselines",
    "DiffusionLM": "baselines",
    "DiscreteTime": "objectives",
    "Dual": "schedules",
    "Duo": "methods",
    "Guided": "wrappers",
    "LogLinear": "schedules",
    "MDLM": "methods",
    "MaskedBound": "objectives",
    "MeanDenoiser": "denoiser",
    "Memoized": "wrappers",
    "NextToken": "objectives",
    "Noise": "noise",
    "Plaid": "baselines",
    "Polynomial": "schedules",
    "Psi": "samplers",
    "Recipe": "recipes",
    "SDTT": "distillation",
    "SEDD": "methods",
    "ScoreDenoiser": "denoiser",
    "ScoreEntropy": "objectives",
    "SubsDenoiser": "denoiser",
    "Temperature": "wrappers",
    "TemperedBound": "objectives",
    "ThroughTime": "objectives",
    "TopK": "protocols",
    "TopP": "wrappers",
    "UDLM": "methods",
    "Uniform": "processes",
    "Vocabulary": "protocols",
    "fit": "train",
    "labelled": "wrappers",
    "likelihood": "evaluate",
    "load": "model",
    "load_judge": "evaluate",
    "recipe": "recipes",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'duality' has no attribute {name!r}")
    return getattr(import_module(f"duality.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
