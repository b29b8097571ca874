"""What a user asks of samples (a prompt, a class, a temperature), as wrappers of the model's denoiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from duality.denoisers.clamp import Clamped, ClampedScore
from duality.denoisers.conditioning import Guided, labelled
from duality.denoisers.filters import Temperature, TopP
from duality.diffusion.processes import Absorbing
from duality.methods.bert_mouth import Gibbs
from duality.methods.diffusion_bert import SpindleSampler
from duality.protocols import Denoiser, Score
from duality.recipes.config import nearest
from duality.runs.model import Model
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.autoregressive import Autoregressive


def mask_of(model: Model) -> int | None:
    """The state that stands for a hidden token; None where the noise has none."""
    own = model.sampler
    if isinstance(own, (Ancestral, Analytic, Gibbs, SpindleSampler)) and isinstance(own.process, Absorbing):
        return own.process.mask_id
    return None


def clamp(model: Model, length: int, prompt: str, suffix: str, device: str) -> Callable[[Any], Any]:
    """The wrapper that keeps prompt and suffix in place."""
    first, last = model.tokenizer.encode(prompt), model.tokenizer.encode(suffix)
    if len(first) + len(last) > length:
        raise ValueError(
            f"prompt and suffix have {len(first) + len(last)} tokens, the sample {length}: "
            "shorten them or raise --length"
        )
    own = model.sampler
    if suffix and isinstance(own, Autoregressive):
        raise ValueError(
            "--suffix with an autoregressive model: it writes from left to right and cannot look ahead; "
            "leave it out, or sample a diffusion model"
        )
    tokens = torch.zeros(length, dtype=torch.int64, device=device)
    known = torch.zeros(length, dtype=torch.bool, device=device)
    for part, start in ((first, 0), (last, length - len(last))):
        tokens[start : start + len(part)] = torch.as_tensor(part)
        known[start : start + len(part)] = True

    def wrap(denoiser: Any) -> Any:
        if not known.any():
            return denoiser
        if isinstance(denoiser, Denoiser):
            return Clamped(denoiser, tokens, known)
        if isinstance(denoiser, Score):
            return ClampedScore(denoiser, model.process(), tokens, known)
        raise ValueError(
            f"--prompt and --suffix with {type(model.recipe.method).__name__}: it writes vectors, in which no token "
            "can be held in place; leave them out, or sample a discrete model"
        )

    return wrap


def guide(model: Model, label: str | None, guidance: float | None, device: str) -> Callable[[Any], Any]:
    """The wrapper that leans towards a class."""
    if label is None and guidance is None:
        return lambda denoiser: denoiser
    if not model.label_names:
        raise ValueError(
            "--label and --guidance need a class-conditional model, and this one was trained without labels: "
            "train one on labelled text with --set data.labels=true data.packing=document"
        )
    if label is None:
        raise ValueError(f"--guidance without --label: say towards which of {', '.join(model.label_names)}")
    if label not in model.label_names:
        raise ValueError(f"unknown --label {label!r}: {nearest(label, model.label_names)}")
    number = model.label_names.index(label)
    if guidance is None:
        return lambda denoiser: labelled(denoiser, torch.tensor([number], device=device))
    return lambda denoiser: Guided(denoiser, number, guidance)


def bend(denoiser: Any, top_p: float, temperature: float) -> Any:
    """The belief as a sample asks for it."""
    if temperature != 1:
        denoiser = Temperature(denoiser, temperature)
    return TopP(denoiser, top_p) if top_p != 1 else denoiser
