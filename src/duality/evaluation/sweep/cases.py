"""Cases and rows: a case says which samples to make, a row is a case with the measures of its samples.

Every field of a case but its label decides the samples: two cases that differ in the label alone have the same samples
and the same file (``key``). Real text is measured as samples are, and is a row too. What must hold: a row that is
written as JSON and read again is the same row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

REAL_TEXT = "real text"


def run_names(runs: Iterable[Path]) -> dict[Path, str]:
    """A name for each run folder: its own, or as much of its path as tells it from the others of that name.

    >>> run_names([Path("/a/demo"), Path("/b/demo"), Path("/b/other")])
    {PosixPath('/a/demo'): 'a/demo', PosixPath('/b/demo'): 'b/demo', PosixPath('/b/other'): 'other'}
    """
    parts = {run: run.resolve().parts for run in runs}

    def name(run: Path, length: int = 1) -> str:
        own = parts[run][-length:]
        shared = any(other != parts[run] and other[-length:] == own for other in parts.values())
        return name(run, length + 1) if shared else "/".join(own)

    return {run: name(run) for run in parts}


def label_of(name: str, number: int | None, checkpoint: int | None = None) -> str:
    """The label of a run of this name: at a round of its distillation, or at a checkpoint, if one was chosen.

    >>> label_of("demo", None), label_of("demo-dcd", 3), label_of("demo", None, 2000)
    ('demo', 'demo-dcd, round 3', 'demo, step 2000')
    """
    at = name if checkpoint is None else f"{name}, step {checkpoint}"
    return at if number is None else f"{at}, round {number}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Samples to be measured: of which run, and with which settings. ``label`` is the name of the model in tables.

    ``round`` is a round of distillation and ``checkpoint`` a training step whose weights the run has kept; None for the
    newest weights. ``sampler`` and ``grid`` are names; a sampler
    without ``eta`` has None. ``steps`` is the number of steps of each sample.
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
    checkpoint: int | None = None

    def to_json(self) -> dict[str, object]:
        """All fields, as JSON has them; without a checkpoint none, as in older versions, whose samples are used."""
        found = {**asdict(self), "run": str(self.run)}
        return found if self.checkpoint is not None else {k: v for k, v in found.items() if k != "checkpoint"}

    def settings(self) -> dict[str, object]:
        """What decides the samples, the weights aside: all fields but the label."""
        return {name: value for name, value in self.to_json().items() if name != "label"}

    @property
    def key(self) -> str:
        """A file name of its own for each case; people can read most of the settings in it."""
        digest = hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()[:8]
        rounds = [] if self.round is None else [f"round{self.round}"]
        return "-".join([self.run.name, *rounds, self.sampler, self.tail, str(self.steps), digest])


@dataclass(frozen=True)
class Score:
    """The mean of a scorer's column over the ``count`` texts that have a number in it, with its 95 % interval.

    ``value`` is None if no text has a number, the interval if fewer than two have. ``scorer`` is the key under which
    the numbers of the single texts are kept (``scorers.key_of``).
    """

    value: float | None
    low: float | None
    high: float | None
    count: int
    scorer: str


@dataclass(frozen=True, kw_only=True)
class Row(Case):
    """A case with its measures.

    What needs a judge is None without one; errors and intervals are None for a single sample. ``stderr``, ``low`` and
    ``high`` belong to ``gen_ppl``. ``scores`` are the columns of scorers. ``empty`` counts the samples without text, or
    without a token that the judge scores. The row of real text has the label ``REAL_TEXT`` and 0 steps.
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
    empty: int = 0
    scores: Mapping[str, Score] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Row:
        """The row that ``to_json`` gave; rows of older versions have no scores."""
        scores = {name: Score(**score) for name, score in found.get("scores", {}).items()}
        return cls(**{**found, "run": Path(found["run"]), "scores": scores})

    @property
    def real(self) -> bool:
        """Whether this is real text."""
        return self.label == REAL_TEXT

    @property
    def case(self) -> Case:
        """The case that was measured."""
        return Case(**{each.name: getattr(self, each.name) for each in fields(Case)})
