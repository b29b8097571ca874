"""A text under a model, token by token, and under the judge.

What must hold: the nats are those of ``Model.surprisal`` with the same draws and seed; a number that is not known, such
as the standard error of one draw, is None.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from duality.denoisers.wrapping import network_of
from duality.evaluation.sweep.runs import count_calls
from duality.studio.generation import Check, Event
from duality.studio.schemas import Likelihood, Refusal, one_line

if TYPE_CHECKING:
    from torch import Tensor

    from duality.evaluation.judge import Judge
    from duality.models.model import Model


def measure_surprisal(model: Model, request: Likelihood, check: Check) -> Event:
    """The nats of each token of a text."""
    try:
        with count_calls(network_of(model.denoiser), check):
            found = model.surprisal(request.text, num_draws=request.draws, seed=request.seed, label=request.label)
    except (ValueError, TypeError) as error:
        raise Refusal(400, one_line(error)) from None
    total = sum(each.nats for each in found)
    return {
        "run": request.run,
        "kind": model.measure.kind,
        "tokens": [
            {"token": each.token, "text": each.text, "nats": _round(each.nats), "stderr": _round(each.stderr)}
            for each in found
        ],
        "nats": _round(total),
        "bits_per_character": _round(total / math.log(2) / len(request.text)),
    }


def judge_text(judge: Judge, text: str, check: Check) -> Event:
    """The perplexity of a text under the judge; None for a text of which no token is scored."""

    def logits(ids: Tensor, valid: Tensor) -> Tensor:
        check()
        return judge.logits(ids, valid)

    ((nats, count),) = replace(judge, logits=logits).nats([text])
    return {"judge": judge.name, "perplexity": _round(math.exp(min(nats / count, 700.0))) if count else None}


def _round(value: float) -> float | None:
    """Four digits; None for what is not finite."""
    return round(value, 4) if math.isfinite(value) else None
