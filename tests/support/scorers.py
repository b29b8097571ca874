"""A scorer that needs the training texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duality.evaluation.scorers import Numbers, ScorerContext


@dataclass(frozen=True)
class Known:
    """Whether a text is a training text; an empty text has no number."""

    context: ScorerContext
    name: str = "known"
    version: str = "1"
    columns: tuple[str, ...] = ("known",)

    @classmethod
    def from_context(cls, context: ScorerContext) -> Known:
        return cls(context)

    def __call__(self, texts: Sequence[str]) -> Numbers:
        training = set(self.context.training_texts())
        return {"known": [float(text in training) if text else None for text in texts]}
