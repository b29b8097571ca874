"""Cases, samples and rows: what to sample, the samples, and a case with the measures of its samples; and their files.

    OUT/samples/<key>.jsonl       the samples of a case: the case with weights and cost, then a line for each sample
    OUT/samples/real-text.jsonl   real text, which is cut like samples, measured as they are, and a row too
    OUT/quality.json              {"rows": [...], "references": [...]}, real text under the second name

Every field of a case but its label decides the samples: two cases that differ in the label alone have the same samples
and the same file (``key``). A file of samples is used again only if it is complete and its case and weights are the
requested ones. Otherwise the samples are made again.

What must hold: a row that is written as JSON and read again is the same row.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from duality.data.packing import Sequences
from duality.files.atomic import check_file, write_atomically
from duality.files.progress import Reporter
from duality.recipes.config import build
from duality.tokenizers.tokenizer import Tokenizer, text_before_end

REAL_TEXT = "real text"
MEASURES = ("gen_ppl", "nats", "entropy", "distinct_1", "distinct_2", "distinct_3")  # no column of a scorer is one
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what a damaged file of JSON leads to

Interval = tuple[float | None, float | None, float | None]  # a value, and where its interval begins and ends


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
    newest weights. ``sampler`` and ``grid`` are names; a sampler without ``eta`` has None. ``steps`` is the number of
    steps of each sample, ``precision`` what the network computes in.
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
    precision: str = "float32"

    def to_json(self) -> dict[str, object]:
        """All fields, as JSON has them; a checkpoint and a precision only if others than the usual ones were chosen."""
        found = {**asdict(self), "run": str(self.run)}
        usual = {"checkpoint": None, "precision": "float32"}
        return {name: value for name, value in found.items() if name not in usual or value != usual[name]}

    @property
    def settings(self) -> dict[str, object]:
        """What decides the samples, the weights aside: all fields of a case but the label, also of a row."""
        names = {each.name for each in fields(Case)} - {"label"}
        return {name: value for name, value in self.to_json().items() if name in names}

    @property
    def key(self) -> str:
        """A file name of its own for each case; people can read most of the settings in it."""
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        rounds = [] if self.round is None else [f"round{self.round}"]
        return "-".join([self.run.name, *rounds, self.sampler, self.tail, str(self.steps), digest])

    def path(self, out: Path) -> Path:
        """The file that keeps the samples of a case, or real text, in the folder of a sweep."""
        return out / "samples" / ("real-text.jsonl" if self.label == REAL_TEXT else f"{self.key}.jsonl")


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

    @property
    def real(self) -> bool:
        """Whether this is real text."""
        return self.label == REAL_TEXT

    @property
    def model(self) -> tuple[Path, int | None, int | None]:
        """What distinguishes models: the run, the round and the checkpoint."""
        return self.run, self.round, self.checkpoint

    def measure(self, name: str) -> Interval:
        """One of ``MEASURES`` or a column of a scorer, with its interval; None where it is not known."""
        if score := self.scores.get(name):
            return score.value, score.low, score.high
        if name == "nats":
            value, low, high = (None if each is None else math.log(each) for each in self.measure("gen_ppl"))
            return value, low, high
        ends = {"gen_ppl": (self.low, self.high), "entropy": (self.entropy_low, self.entropy_high)}
        return getattr(self, name) if name in MEASURES else None, *ends.get(name, (None, None))


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

    @classmethod
    def cut_real_text(cls, sequences: Sequences, tokenizer: Tokenizer, num: int) -> Samples | None:
        """At most ``num`` whole sequences, evenly spread; None if every sequence is shorter than its row.

        Where a sequence is not whole, the next whole one is taken. Padding that is modelled makes a sequence whole. A
        text ends before the first end-of-text, like that of a sample.
        """
        starts, stops = sequences.windows(np.arange(len(sequences)))
        whole = np.flatnonzero((stops - starts == sequences.length) | sequences.models_padding)
        if not len(whole):
            return None
        count = min(num, len(sequences))
        places = np.searchsorted(whole, np.arange(count) * len(sequences) // count)
        tokens, _ = sequences.rows(np.unique(whole[places.clip(max=len(whole) - 1)]))
        return cls(tokens, [text_before_end(tokenizer, row) for row in tokens.tolist()], 0.0, 0.0, REAL_TEXT)

    def write(self, out: Path, case: Case) -> None:
        """Write samples with their settings and weights into the folder of a sweep."""
        if tuple(self.tokens.shape) != (case.num, case.length):
            raise ValueError(
                f"{case.label}: asked for {case.num} samples of {case.length} tokens, got tokens of shape "
                f"{tuple(self.tokens.shape)}"
            )
        cost = {"seconds_per_sample": self.seconds_per_sample, "nfe": self.nfe}
        head = {"format": 2, "case": case.to_json(), "weights": self.weights, **cost}
        lines = [
            {"index": index, "seed": case.seed, "tokens": tokens, "text": text}
            for index, (tokens, text) in enumerate(zip(self.tokens.tolist(), self.texts))
        ]
        case.path(out).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(case.path(out), "".join(json.dumps(line) + "\n" for line in [head, *lines]))

    @classmethod
    def find(cls, out: Path, case: Case, weights: str, report: Reporter) -> Samples | None:
        """The samples of a case in the folder ``out``, if they are whole and were made by its settings and weights."""
        path = case.path(out)
        if not path.is_file():
            return None
        try:
            settings, samples = cls._parse(path, case)
        except _UNREADABLE as error:
            why = f"is damaged or incomplete ({type(error).__name__}: {error})"
        else:
            if samples.weights == weights and settings == case.settings:
                return samples
            other = f"weights ({samples.weights}, now {weights})" if samples.weights != weights else "settings"
            why = f"was made by other {other}"
        report(f"{path} {why}: sampling again")
        return None

    @classmethod
    def read(cls, out: Path, case: Case) -> Samples:
        """The samples of a case that was measured before into the folder ``out``, whichever weights made them."""
        try:
            return cls._parse(case.path(out), case)[1]
        except (OSError, *_UNREADABLE) as error:
            raise ValueError(
                f"no samples of {case.label} in {case.path(out)} ({type(error).__name__}: {error}): measure it again "
                f"with `duality quality --out {out}`"
            ) from error

    @classmethod
    def _parse(cls, path: Path, case: Case) -> tuple[dict[str, object], Samples]:
        """The settings in the file of a case, and its samples; an error if the file is not whole."""
        head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        settings = {name: value for name, value in head["case"].items() if name != "label"}
        tokens, texts = torch.tensor([line["tokens"] for line in lines]), [str(line["text"]) for line in lines]
        samples = cls(tokens, texts, float(head["seconds_per_sample"]), float(head["nfe"]), head["weights"])
        if [line["index"] for line in lines] != list(range(case.num)) or tuple(tokens.shape) != (case.num, case.length):
            raise ValueError(f"{len(lines)} of {case.num} samples, tokens {tuple(tokens.shape)}")
        return settings, samples


def read_rows(paths: Sequence[Path]) -> dict[Row, Path]:
    """The rows of one or several quality.json (or of folders that hold one), each once, with the folder of each.

    Real text is last. Different runs whose folders have one name get labels that tell them apart.
    """
    found: dict[Row, Path] = {}
    for path in [path / "quality.json" if path.is_dir() else path for path in paths]:
        try:
            check_file(path, "restore it from a backup")
            groups = json.loads(path.read_text(encoding="utf-8"))
            for row in [*groups["rows"], *groups["references"]]:
                scores = {name: build(Score, score) for name, score in row.pop("scores").items()}
                found.setdefault(replace(build(Row, {**row, "run": Path(row["run"])}), scores=scores), path.parent)
        except _UNREADABLE as error:
            raise ValueError(
                f"{path} is not a quality.json ({error}): give one that `duality quality` wrote"
            ) from error
    names, labelled = run_names(row.run for row in found if not row.real), dict[Row, Path]()
    for row in sorted(found, key=lambda row: row.real):
        own = not row.real and row.label == label_of(row.run.name, row.round, row.checkpoint)
        label = label_of(names[row.run], row.round, row.checkpoint) if own else row.label
        labelled[replace(row, label=label)] = found[row]
    return labelled
