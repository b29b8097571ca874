"""Whether every token of a continuation is the most likely one: what lm-evaluation-harness calls ``is_greedy``.

    autoregressive    each token has the highest probability given the context and the tokens before it: exactly what
                      greedy decoding writes
    diffusion         each token has the highest probability given the context alone, all tokens of the continuation
                      being noise: what one network call from pure noise writes. For one token and absorbing noise it is
                      the most likely token. With uniform noise the noisy tokens are one draw, which belongs to the seed
    Gaussian          never: a context cannot be held in place

It is about each window of a continuation, as its likelihood is (models/scoring.py), and costs one network call more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from duality.denoisers.clamp import in_context
from duality.fused.lazy import belief_of
from duality.models.model import Model
from duality.models.scoring import Passage, Window, batch_windows, draw_noise, pad_windows
from duality.protocols import Denoiser


@torch.no_grad()
def greedy(model: Model, rows: Sequence[Passage], batch_size: int, label: str | None = None) -> list[bool]:
    """For each passage whether all its tokens are the most likely ones."""
    if model.measure.kind != "exact" and model.recipe.method.process(model.tokenizer.vocab_size) is None:
        return [False] * len(rows)
    denoiser = model.with_label(label)
    found = [True] * len(rows)
    with model.computing():
        for some in batch_windows([(window, 0) for window in Window.cut(rows, model.length)], batch_size):
            alike = [window for window, _ in some]  # of one shape
            x, real, known = pad_windows(alike, model.device)
            valid = real if alike[0].shape[1] else None
            one = torch.ones(len(alike), dtype=torch.float64, device=model.device)
            if model.measure.kind == "exact":
                best = belief_of(denoiser, x, one, valid).argmax_states()
            else:
                noise = draw_noise(some, model.device).fold("greedy")
                z, alpha = model.process().sample_prior(x.shape[1], noise), model.schedule.alpha(one)
                reader = in_context(denoiser, x, known, valid)
                if isinstance(reader, Denoiser):
                    best = belief_of(reader, z, alpha).argmax_states()
                else:
                    best = model.sampler.last(reader, z, alpha, "greedy", noise)
            for window, row in zip(alike, best.cpu(), strict=True):  # known places have no meaning
                ids = torch.from_numpy(window.ids)[window.known :]
                found[window.text] &= bool((row[window.known : len(window.ids)] == ids).all())
    return found
