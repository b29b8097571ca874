"""Cases, samples and rows: what to sample, the samples in files, and a case with the measures of its samples.

Every field of a case but its label decides the samples: two cases that differ in the label alone have the same samples
and the same file (``key``). Real text is cut like samples, is measured as they are, and is a row too.

A file of samples is JSON lines: first the case, the weights and the cost, then one line for each sample. It is read
again only if it is complete and its case and weights are the requested ones. Otherwise the samples are made again.
``FORMAT`` is 2 since texts end at the first end-of-text token.

What must hold: a row that is written as JSON and read again is the same row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from duality.data.packing import Sequences
from duality.files.atomic import write_atomically
from duality.files.progress import Reporter
from duality.tokenizers.tokenizer import Tokenizer, text_before_end

REAL_TEXT = "real text"
FORMAT = 2


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


@dataclass(frozen=True)
class Samples:
    """Samples as ids (N, L) and as texts, the cost of one in seconds and network calls, and the weights that made them.

    ``weights`` is an identifier: the same weights have the same one.
    """

    tokens: Tensor
    texts: list[str]
    seconds_per_sample: float
    nfe: float
    weights: str

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.tokens):
            raise ValueError(
                f"{len(self.texts)} texts and {len(self.tokens)} rows of tokens: each text needs its own row"
            )


def write_samples(path: Path, case: Case, samples: Samples) -> None:
    """Write samples with their settings and weights."""
    if tuple(samples.tokens.shape) != (case.num, case.length):
        raise ValueError(
            f"{case.label}: asked for {case.num} samples of {case.length} tokens, got tokens of shape "
            f"{tuple(samples.tokens.shape)}"
        )
    cost = {"seconds_per_sample": samples.seconds_per_sample, "nfe": samples.nfe}
    lines: list[dict[str, object]] = [{"format": FORMAT, "case": case.to_json(), "weights": samples.weights, **cost}]
    for index, (tokens, text) in enumerate(zip(samples.tokens.tolist(), samples.texts)):
        lines.append({"index": index, "seed": case.seed, "tokens": tokens, "text": text})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))


def kept_samples(path: Path, case: Case, weights: str, report: Reporter) -> Samples | None:
    """The samples in ``path``, if they are whole and were made by these settings and weights."""
    if not path.is_file():
        return None
    try:
        before, made_in, samples = _read(path, case)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        report(f"{path} is damaged or incomplete ({type(error).__name__}: {error}): sampling again")
        return None
    if made_in != FORMAT:
        report(f"{path} was made by an older version, which did not end texts at the end-of-text: sampling again")
        return None
    if before != case.settings() or samples.weights != weights:
        other = f"other weights ({samples.weights}, now {weights})"
        report(f"{path} was made by {other if samples.weights != weights else 'other settings'}: sampling again")
        return None
    return samples


def stored_samples(path: Path, case: Case) -> Samples:
    """The samples of a case that was measured before, whichever weights made them."""
    try:
        return _read(path, case)[2]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"no samples of {case.label} in {path} ({type(error).__name__}: {error}): measure it again with `duality "
            f"quality --out {path.parent.parent}`"
        ) from error


def _read(path: Path, case: Case) -> tuple[dict[str, object], int, Samples]:
    """The settings in the file of a case, its format, and its samples; an error if the file is not whole."""
    head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    before = {**head["case"]}
    before.pop("label")
    tokens = torch.tensor([line["tokens"] for line in lines])
    texts = [str(line["text"]) for line in lines]
    samples = Samples(tokens, texts, float(head["seconds_per_sample"]), float(head["nfe"]), head["weights"])
    if [line["index"] for line in lines] != list(range(case.num)) or tuple(tokens.shape) != (case.num, case.length):
        raise ValueError(f"{len(lines)} of {case.num} samples, tokens {tuple(tokens.shape)}")
    return before, head.get("format", 1), samples


def real_text(sequences: Sequences, tokenizer: Tokenizer, num: int) -> Samples | None:
    """At most ``num`` whole sequences, evenly spread; None if every sequence is shorter than its row.

    Where a sequence is not whole, the next whole one is taken. Padding that is modelled makes a sequence whole. A text
    ends before the first end-of-text, like that of a sample.
    """
    starts, stops = sequences.windows(np.arange(len(sequences)))
    whole = np.flatnonzero((stops - starts == sequences.length) | sequences.models_padding)
    if not len(whole):
        return None
    count = min(num, len(sequences))
    places = np.searchsorted(whole, np.arange(count) * len(sequences) // count)
    tokens, _ = sequences.rows(np.unique(whole[places.clip(max=len(whole) - 1)]))
    return Samples(tokens, [text_before_end(tokenizer, row) for row in tokens.tolist()], 0.0, 0.0, REAL_TEXT)


def real_text_case(samples: Samples) -> Case:
    """The case of real text: no run, no steps."""
    num, length = samples.tokens.shape
    return Case(label=REAL_TEXT, run=Path(), steps=0, num=num, length=length, sampler="none", tail="none")
