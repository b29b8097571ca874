"""A text under a model, token by token, and under the judge.

What must hold: the nats are those of ``Model.surprisal`` with the same draws and seed; a number that is not known, such
as the standard error of one draw, is None.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from duality.denoisers.wrapping import network_of
from duality.evaluation.sweep.sampling import count_calls
from duality.studio.fields import Typed, Values
from duality.studio.limits import Refusal, one_line
from duality.studio.patience import Patience

if TYPE_CHECKING:
    from torch import Tensor

    from duality.evaluation.judge import Judge
    from duality.models.model import Model

BIT = math.log(2)


def surprisal(model: Model, values: Values, patience: Patience) -> dict[str, object]:
    """The nats of each token of a text."""
    text, label = Typed(str).of(values, "text"), Typed(str).maybe(values, "label")
    draws, seed = Typed(int).of(values, "draws"), Typed(int).of(values, "seed")
    try:
        with count_calls(network_of(model.denoiser), patience.check):
            found = model.surprisal(text, num_draws=draws, seed=seed, label=label)
    except (ValueError, TypeError) as error:
        raise Refusal(400, one_line(error)) from None
    total = sum(each.nats for each in found)
    return {
        "run": values["run"],
        "kind": model.measure.kind,
        "tokens": [
            {"token": each.token, "text": each.text, "nats": rounded(each.nats), "stderr": rounded(each.stderr)}
            for each in found
        ],
        "nats": rounded(total),
        "bits_per_character": rounded(total / BIT / len(text)),
    }


def judged(judge: Judge, text: str, patience: Patience) -> dict[str, object]:
    """The perplexity of a text under the judge; None for a text of which no token is scored."""

    def logits(ids: Tensor, valid: Tensor) -> Tensor:
        patience.check()
        return judge.logits(ids, valid)

    ((nats, count),) = replace(judge, logits=logits).nats([text])
    return {"judge": judge.name, "perplexity": rounded(math.exp(min(nats / count, 700.0))) if count else None}


def rounded(value: float) -> float | None:
    """Four digits; None for what is not finite."""
    return round(value, 4) if math.isfinite(value) else None
