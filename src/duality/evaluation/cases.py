"""Cases and rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REAL_TEXT = "real text"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Samples to be measured: of which model, and how they are written. ``label`` is the model's name in tables.

    ``round`` is that of distillation, None where there is but one model. ``sampler`` and ``grid`` are names; ``eta``
    belongs to the samplers that have one.
    """

    label: str
    run: Path
    steps: int
    num: int
    length: int
    seed: int = 0
    round: int | None = None
    sampler: str = "own"
    eta: float | None = None
    tail: str = "ancestral"
    grid: str | None = None
    top_p: float = 1.0
    temperature: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Row(Case):
    """A case with its figures; those of the judge are None without one, errors also where one sample tells none.

    Real text is a row too: its label is ``REAL_TEXT``, its steps are 0.
    """

    judge: str | None
    gen_ppl: float | None
    stderr: float | None
    low: float | None
    high: float | None
    entropy: float
    entropy_low: float | None
    entropy_high: float | None
    distinct_1: float
    distinct_2: float
    distinct_3: float
    self_repetition: float
    mauve: float | None
    nfe: float
    seconds_per_sample: float

    @property
    def real(self) -> bool:
        """Whether it is real text, not samples."""
        return self.label == REAL_TEXT
