"""The sweep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from duality.data.files import file_sha256, write_atomically
from duality.evaluation.cases import REAL_TEXT, Case, Row
from duality.evaluation.judge import Judge
from duality.evaluation.tables import details, markdown, remarks
from duality.evaluation.text_metrics import (
    Estimate,
    distinct,
    mauve,
    mauve_obstacle,
    perplexity,
    self_repetition,
    unigram_entropy,
)
from duality.protocols import Reporter

Advance = Callable[[int], None]


_REPEATED = 4  # n of self-repetition; also the shortest sample that can be measured


@dataclass(frozen=True)
class Samples:
    """Samples as ids (N, L) and as texts; what each took, in seconds and network calls; which weights wrote them."""

    tokens: Tensor
    texts: list[str]
    seconds_per_sample: float
    nfe: float
    weights: str


def measure(
    cases: Sequence[Case],
    *,
    judge: Judge | None,
    out: Path,
    sample: Callable[[Case, Advance], Samples],
    weights: Callable[[Case], str],
    report: Reporter,
    advance: Advance = lambda count: None,
    reference: Samples | None = None,
) -> list[Row]:
    """A row for every case and one of real text (``reference``), written after each case: nothing is lost.

    ``weights(case)`` says which weights ``sample`` would use (``weights_id``), so that kept samples can be trusted.
    """
    check(cases)
    (out / "samples").mkdir(parents=True, exist_ok=True)
    bench = Bench(judge, out, Scores.read(out / "scores.json", report), reference)
    for reason in dict.fromkeys(bench.obstacle(case.num) for case in cases):
        if reason is not None:
            report(f"no MAUVE: {reason}")
    real = bench.reference_rows()
    rows: list[Row] = []
    for case in cases:
        path = out / "samples" / f"{key(case)}.jsonl"
        samples = kept(path, case, weights(case), report)
        if samples is None:
            report(f"sampling {case.label}, {case.num} sequences in {case.steps} steps")
            samples = sample(case, advance)
            write_samples(path, case, samples)
        rows.append(bench.row(case, samples, path))
        write_rows(out, [*rows, *real])
    return [*rows, *real]


def write_rows(out: Path, rows: Sequence[Row]) -> None:
    """quality.json and quality.md."""
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "references": []}
    for row in rows:
        found["references" if row.real else "rows"].append(plain(row))
    write_atomically(out / "quality.json", json.dumps(found, indent=1))
    parts = [markdown(rows), *(f"{line}\n" for line in remarks(rows)), details(rows)]
    write_atomically(out / "quality.md", "\n".join(parts))


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """The rows of one or several quality.json (or of folders that hold one), each once; real text last."""
    rows: list[Row] = []
    for path in [path / "quality.json" if path.is_dir() else path for path in paths]:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            rows += [Row(**{**row, "run": Path(row["run"])}) for row in [*found["rows"], *found["references"]]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a quality.json ({error}): give one that `duality quality` wrote"
            ) from error
    return sorted(dict.fromkeys(rows), key=lambda row: row.real)


def check(cases: Sequence[Case]) -> None:
    """Refuse what cannot be measured before anything is sampled."""
    if not cases:
        raise ValueError("nothing to measure: give at least one case")
    for case in cases:
        if case.steps < 1 or case.num < 1 or case.length < _REPEATED:
            raise ValueError(
                f"{case.label}: steps is {case.steps}, num {case.num}, length {case.length}: steps and num must be at "
                f"least 1, and length {_REPEATED}, as {_REPEATED}-grams are counted"
            )
    if len({key(case) for case in cases}) < len(cases):
        raise ValueError("a setting stands twice among those to measure: name each once")


def settings(case: Case) -> dict[str, Any]:
    """What decides a case's samples, but for the weights: all its fields but its name in tables."""
    return {name: value for name, value in plain(case).items() if name != "label"}


def plain(case: Case) -> dict[str, Any]:
    """The fields of a case or row, as JSON has them."""
    return {**asdict(case), "run": str(case.run)}


def key(case: Case) -> str:
    """A file name that tells the case apart, and tells people most of it."""
    digest = hashlib.sha256(json.dumps(settings(case), sort_keys=True).encode()).hexdigest()[:8]
    rounds = [] if case.round is None else [f"round{case.round}"]
    return "-".join([case.run.name, *rounds, case.sampler, case.tail, str(case.steps), digest])


def write_samples(path: Path, case: Case, samples: Samples) -> None:
    """Samples with what made them."""
    if len(samples.texts) != case.num or tuple(samples.tokens.shape) != (case.num, case.length):
        raise ValueError(
            f"{case.label}: asked for {case.num} samples of {case.length} tokens, got {len(samples.texts)} texts and "
            f"tokens of shape {tuple(samples.tokens.shape)}"
        )
    made = {"seconds_per_sample": samples.seconds_per_sample, "nfe": samples.nfe}
    lines: list[dict[str, Any]] = [{"case": plain(case), "weights": samples.weights, **made}]
    for index, (tokens, text) in enumerate(zip(samples.tokens.tolist(), samples.texts)):
        lines.append({"index": index, "seed": case.seed, "tokens": tokens, "text": text})
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))


def kept(path: Path, case: Case, weights: str, report: Reporter) -> Samples | None:
    """The samples in ``path``, if they are there, whole, and made by these settings and weights."""
    if not path.is_file():
        return None
    try:
        head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        before, made = {**head["case"]}, head["weights"]
        before.pop("label")
        tokens = torch.tensor([line["tokens"] for line in lines])
        texts = [str(line["text"]) for line in lines]
        samples = Samples(tokens, texts, float(head["seconds_per_sample"]), float(head["nfe"]), made)
        if [line["index"] for line in lines] != list(range(case.num)) or tuple(tokens.shape) != (case.num, case.length):
            raise ValueError(f"{len(lines)} of {case.num} samples, tokens {tuple(tokens.shape)}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        report(f"{path} is damaged or incomplete ({type(error).__name__}: {error}): sampling again")
        return None
    if before != settings(case) or made != weights:
        what = f"other weights ({made}, now {weights})" if made != weights else "other settings"
        report(f"{path} was made by {what}: sampling again")
        return None
    return samples


@dataclass(frozen=True)
class Scores:
    """What judges said before, by the judge's name and the sha256 of a samples file."""

    path: Path
    entries: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, path: Path, report: Reporter) -> Scores:
        """Scores that were kept; none if the file is absent or damaged."""
        try:
            entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except ValueError as error:
            report(f"{path} is damaged ({error}): judging again")
            entries = {}
        return cls(path, entries)

    def once(self, judge: Judge, name: str, what: Callable[[], Any]) -> Any:
        """What was said under ``name``, or else what is said now, which is kept."""
        said = self.entries.setdefault(judge.name, {})
        if name not in said:
            said[name] = what()
            write_atomically(self.path, json.dumps(self.entries))
        return said[name]


@dataclass(frozen=True)
class Bench:
    """Where samples are measured: all by the same judge, against the same real text."""

    judge: Judge | None
    out: Path
    scores: Scores
    reference: Samples | None
    remembered: dict[str, Tensor] = field(default_factory=dict)

    def reference_rows(self) -> list[Row]:
        """The row of real text, if there is any; it is kept as samples are."""
        if self.reference is None:
            return []
        num, length = self.reference.tokens.shape
        case = Case(label=REAL_TEXT, run=Path(), steps=0, num=num, length=length, sampler="none", tail="none")
        write_samples(self.reference_path, case, self.reference)
        return [self.row(case, self.reference, self.reference_path)]

    @property
    def reference_path(self) -> Path:
        return self.out / "samples" / "real-text.jsonl"

    def row(self, case: Case, samples: Samples, path: Path) -> Row:
        """The figures of samples that are in ``path``."""
        tokens = samples.tokens
        likely, entropy = self.likely(samples, path), unigram_entropy(tokens)
        alone = case.num == 1
        return Row(
            **{each.name: getattr(case, each.name) for each in fields(Case)},
            judge=None if self.judge is None else self.judge.name,
            gen_ppl=None if likely is None else likely.value,
            stderr=None if likely is None or alone else likely.stderr,
            low=None if likely is None or alone else likely.low,
            high=None if likely is None or alone else likely.high,
            entropy=entropy.value,
            entropy_low=None if alone else entropy.low,
            entropy_high=None if alone else entropy.high,
            distinct_1=distinct(tokens, 1),
            distinct_2=distinct(tokens, 2),
            distinct_3=distinct(tokens, 3),
            self_repetition=self_repetition(tokens, _REPEATED),
            mauve=None if case.label == REAL_TEXT else self.mauve(samples, path),
            nfe=samples.nfe,
            seconds_per_sample=samples.seconds_per_sample,
        )

    def likely(self, samples: Samples, path: Path) -> Estimate | None:
        """Gen PPL, with a judge."""
        judge = self.judge
        if judge is None:
            return None
        return perplexity(self.scores.once(judge, file_sha256(path), lambda: judge.nats(samples.texts)))

    def obstacle(self, num: int) -> str | None:
        """Why there is no MAUVE of ``num`` samples."""
        if self.reference is None:
            return "it needs real text to compare with"
        return mauve_obstacle(self.judge, num, len(self.reference.texts))

    def mauve(self, samples: Samples, path: Path) -> float | None:
        """MAUVE against the real text, where it can be had."""
        judge = self.judge
        if judge is None or self.obstacle(len(samples.texts)) is not None:
            return None
        name = f"mauve of {file_sha256(path)} against {file_sha256(self.reference_path)}"
        value: float = self.scores.once(judge, name, lambda: mauve(judge.features(samples.texts), self.features(judge)))
        return value

    def features(self, judge: Judge) -> Tensor:
        """Those of the real text, made when first asked for."""
        if self.reference is not None and judge.name not in self.remembered:
            self.remembered[judge.name] = judge.features(self.reference.texts)
        return self.remembered[judge.name]
