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
    "AR": "methods.ar",
    "Absorbing": "diffusion.processes",
    "Analytic": "samplers.analytic",
    "Ancestral": "samplers.ancestral",
    "Autoregressive": "samplers.autoregressive",
    "BertMouth": "methods.bert_mouth",
    "Bound": "objectives.nelbo",
    "CausalDenoiser": "denoisers.readouts",
    "Clamped": "denoisers.clamp",
    "Consistency": "objectives.consistency",
    "Cosine": "diffusion.schedules",
    "D3PM": "methods.d3pm",
    "DCD": "training.distillation",
    "DiT": "networks.dit",
    "DiffusionBERT": "methods.diffusion_bert",
    "DiffusionLM": "methods.diffusion_lm",
    "DiscreteTime": "objectives.discrete_time",
    "Dual": "diffusion.schedules",
    "Duo": "methods.duo",
    "Guided": "denoisers.conditioning",
    "LogLinear": "diffusion.schedules",
    "MDLM": "methods.mdlm",
    "MaskedBound": "objectives.masked",
    "MeanDenoiser": "denoisers.readouts",
    "Memoized": "denoisers.memo",
    "NextToken": "objectives.next_token",
    "Noise": "noise",
    "Plaid": "methods.plaid",
    "Polynomial": "diffusion.schedules",
    "Psi": "samplers.psi",
    "Recipe": "recipes.recipe",
    "SDTT": "training.distillation",
    "SEDD": "methods.sedd",
    "ScoreDenoiser": "denoisers.readouts",
    "ScoreEntropy": "objectives.score_entropy",
    "SubsDenoiser": "denoisers.readouts",
    "Temperature": "denoisers.filters",
    "TemperedBound": "objectives.curriculum",
    "ThroughTime": "objectives.through_time",
    "TopK": "protocols",
    "TopP": "denoisers.filters",
    "UDLM": "methods.udlm",
    "Uniform": "diffusion.processes",
    "Vocabulary": "protocols",
    "fit": "training.loop",
    "labelled": "denoisers.conditioning",
    "likelihood": "evaluation.likelihood",
    "load": "runs.model",
    "load_judge": "evaluation.judge",
    "recipe": "recipes.catalogue",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'duality' has no attribute {name!r}")
    return getattr(import_module(f"duality.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
