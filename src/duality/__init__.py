"""duality: discrete diffusion language models.

A model is a process (where noise goes), a schedule (how fast), a denoiser (what was there), an objective (how it
learns) and a sampler (how it writes). Start with ``duality.protocols``.

    model = duality.train("duo-laptop", data=texts, out="runs/mine")     a recipe and data in, a model out
    few = duality.distill("runs/mine")                                   a model that needs fewer steps
    model = duality.load("runs/mine")                                    sample, fill, log_likelihood, surprisal, hidden

The parts work alone. Noise on three tokens, at the signal level of time 0.5:

>>> import torch, duality
>>> process, schedule = duality.Uniform(10), duality.LogLinear()
>>> noise = duality.Noise.of(seed=0, step=0, index=torch.arange(2))
>>> x = torch.tensor([[3, 1, 4], [1, 5, 9]])
>>> alpha = schedule.alpha(torch.full((2,), 0.5, dtype=torch.float64))
>>> process.corrupt(x, alpha, noise).shape
torch.Size([2, 3])

Names are imported when they are first used, so that the command line answers ``--help`` without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a type checker sees the signatures of what a user calls first
    from duality.models.model import Model as Model
    from duality.models.model import load as load
    from duality.models.sampling import Sample as Sample
    from duality.recipes.catalogue import recipe as recipe
    from duality.runs.train import distill as distill
    from duality.runs.train import train as train

__version__ = "0.1.0"

_HOMES = {
    "AR": "methods.ar",
    "Absorbing": "diffusion.processes",
    "Analytic": "samplers.analytic",
    "Ancestral": "samplers.ancestral",
    "Autoregressive": "samplers.autoregressive",
    "BPE": "tokenizers.specs",
    "BertMouth": "methods.bert_mouth",
    "Bytes": "tokenizers.specs",
    "CausalDenoiser": "denoisers.readouts",
    "Characters": "tokenizers.specs",
    "Clamped": "denoisers.clamp",
    "Consistency": "objectives.consistency",
    "ContinuousTimeBound": "objectives.continuous_time",
    "Cosine": "diffusion.schedules",
    "D3PM": "methods.d3pm",
    "DCD": "training.distillation",
    "DiT": "networks.dit",
    "DiffusionBERT": "methods.diffusion_bert",
    "DiffusionLM": "methods.diffusion_lm",
    "DiscreteTimeBound": "objectives.discrete_time",
    "Dual": "diffusion.schedules",
    "Duo": "methods.duo",
    "GaussianAncestral": "samplers.gaussian",
    "Guided": "denoisers.conditioning",
    "LogLinear": "diffusion.schedules",
    "MDLM": "methods.mdlm",
    "MeanDenoiser": "denoisers.readouts",
    "Memoized": "denoisers.memo",
    "Model": "models.model",
    "NextToken": "objectives.next_token",
    "Noise": "noise",
    "Plaid": "methods.plaid",
    "Polynomial": "diffusion.schedules",
    "Psi": "samplers.psi",
    "Recipe": "recipes.recipe",
    "SDTT": "training.distillation",
    "SEDD": "methods.sedd",
    "Sample": "models.sampling",
    "ScoreDenoiser": "denoisers.readouts",
    "ScoreEntropy": "objectives.score_entropy",
    "SubsDenoiser": "denoisers.readouts",
    "Temperature": "denoisers.filters",
    "TemperedBound": "objectives.curriculum",
    "ThroughTime": "objectives.through_time",
    "TopK": "protocols",
    "TopP": "denoisers.filters",
    "Training": "training.settings",
    "TrainingStopped": "runs.train",
    "UDLM": "methods.udlm",
    "Uniform": "diffusion.processes",
    "Variational": "objectives.variational",
    "Vocabulary": "protocols",
    "distill": "runs.train",
    "fit": "training.loop",
    "generate": "samplers.generate",
    "likelihood": "models.likelihood",
    "load": "models.model",
    "load_judge": "evaluation.judge",
    "recipe": "recipes.catalogue",
    "train": "runs.train",
    "with_labels": "denoisers.conditioning",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'duality' has no attribute {name!r}")
    return getattr(import_module(f"duality.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
