"""A text under a model, token by token.

What must hold: the nats are those of ``Model.surprisal`` with the same draws and seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duality.studio.fields import Typed, Values
from duality.studio.limits import Refusal

if TYPE_CHECKING:
    from duality.runs.model import Model


def surprisal(model: Model, values: Values) -> dict[str, object]:
    """The nats of each token of a text."""
    text, label = Typed(str).of(values, "text"), Typed(str).maybe(values, "label")
    draws, seed = Typed(int).of(values, "draws"), Typed(int).of(values, "seed")
    try:
        found = model.surprisal(text, num_draws=draws, seed=seed, label=label)
    except (ValueError, TypeError) as error:
        raise Refusal(400, " ".join(str(error).split())) from None
    tokens = [
        {"token": each.token, "text": each.text, "nats": round(each.nats, 4), "stderr": round(each.stderr, 4)}
        for each in found
    ]
    total = sum(each.nats for each in found)
    return {
        "run": values["run"],
        "kind": model.measure.kind,
        "tokens": tokens,
        "nats": round(total, 4),
        "bits_per_character": round(total / 0.6931471805599453 / len(text), 4) if text else None,
    }
