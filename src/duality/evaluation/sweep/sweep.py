"""The sweep: the one pipeline from cases to rows, for `duality quality` and `duality compare`.

    case  ->  samples (kept in OUT/samples/)  ->  scores of judge and scorers (kept in OUT/scores.json)  ->  row

What must hold: saved samples are not made again, and a judge or scorer does not score the same samples again, unless
the weights, the settings or a file changed; all rows of a sweep have the same judge, scorers and real text; a sample
without text ends no sweep. The ranks of a job (``ranks``) sample together; rank 0 keeps and scores.

``measure`` also writes OUT/quality.json, ``{"rows": [...], "references": [...]}`` with real text under the second name,
and OUT/quality.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from duality.evaluation.metrics import (
    Estimate,
    distinct,
    mauve,
    mauve_obstacle,
    perplexity,
    self_repetition,
    unigram_entropy,
)
from duality.evaluation.scorers import Scorer, key_of, score_texts, summary
from duality.evaluation.sweep.samples import (
    REAL_TEXT,
    Case,
    Row,
    Samples,
    Score,
    kept_samples,
    label_of,
    real_text_case,
    run_names,
    write_samples,
)
from duality.evaluation.tables import details, markdown, remarks
from duality.files.atomic import file_sha256, json_text, write_atomically
from duality.files.kept_scores import FILE, Scores
from duality.files.progress import Reporter
from duality.ranks import job

if TYPE_CHECKING:
    from duality.evaluation.judge import Judge

Advance = Callable[[int], None]

REAL_TEXT_FILE = "real-text.jsonl"
_REPEATED = 4  # n of self-repetition; a sample has to be as long


class SampleSource(Protocol):
    """Makes samples. ``weights`` identifies the weights that ``sample`` would use, so that kept samples can be trusted.

    ``sample`` calls ``advance(1)`` after every step of every batch.
    """

    def sample(self, case: Case, advance: Advance) -> Samples: ...
    def weights(self, case: Case) -> str: ...


@dataclass(frozen=True)
class Sweep:
    """Cases measured in the same manner: one judge, the same scorers, one folder that keeps samples and scores."""

    out: Path
    source: SampleSource
    report: Reporter
    judge: Judge | None = None
    real_text: Samples | None = None
    scorers: Sequence[Scorer] = ()

    def measure(self, cases: Sequence[Case], advance: Advance = lambda count: None) -> list[Row]:
        """A row for every case, and those of real text last; the files are written after every case."""
        check(cases)
        for reason in dict.fromkeys(self.mauve_obstacle(case.num) for case in cases):
            if reason is not None:
                self.report(f"no MAUVE: {reason}")
        real = job().once(self.real_rows)
        rows: list[Row] = []
        for case in cases:
            rows.append(self.row(case, advance))
            job().once(lambda: write_rows(self.out, [*rows, *real]))
        return [*rows, *real]

    def row(self, case: Case, advance: Advance = lambda count: None) -> Row:
        """The row of a case; its samples are made unless they are kept."""
        path, weights = sample_path(self.out, case), self.source.weights(case)
        kept = job().once(lambda: kept_samples(path, case, weights, self.report))
        if kept is not None:
            return job().once(lambda: self.measured(case, kept, path))
        self.report(f"sampling {case.label}, {case.num} sequences in {case.steps} steps")
        made = self.source.sample(case, advance)

        def measured() -> Row:
            write_samples(path, case, made)
            return self.measured(case, made, path)

        return job().once(measured)

    def real_rows(self) -> list[Row]:
        """The row of real text, if there is any; it is kept as samples are."""
        if self.real_text is None:
            return []
        case = real_text_case(self.real_text)
        write_samples(self.real_text_path, case, self.real_text)
        return [self.measured(case, self.real_text, self.real_text_path)]

    @property
    def real_text_path(self) -> Path:
        """The file that keeps the real text."""
        return self.out / "samples" / REAL_TEXT_FILE

    def measured(self, case: Case, samples: Samples, path: Path) -> Row:
        """The measures of the samples in ``path``."""
        tokens = samples.tokens
        nats = self.nats(samples, path)
        likely, entropy = self.perplexity(case, nats), unigram_entropy(tokens)
        # a single sample has no interval
        likely_spread = likely if likely is not None and likely.known else None
        entropy_spread = entropy if entropy.known else None
        return Row(
            **{each.name: getattr(case, each.name) for each in fields(Case)},
            judge=None if self.judge is None else self.judge.name,
            gen_ppl=None if likely is None else likely.value,
            stderr=None if likely_spread is None else likely_spread.stderr,
            low=None if likely_spread is None else likely_spread.low,
            high=None if likely_spread is None else likely_spread.high,
            entropy=entropy.value,
            entropy_low=None if entropy_spread is None else entropy_spread.low,
            entropy_high=None if entropy_spread is None else entropy_spread.high,
            distinct_1=distinct(tokens, 1),
            distinct_2=distinct(tokens, 2),
            distinct_3=distinct(tokens, 3),
            self_repetition=self_repetition(tokens, _REPEATED),
            mauve=None if case.label == REAL_TEXT else self.mauve(samples, path),
            nfe=samples.nfe,
            seconds_per_sample=samples.seconds_per_sample,
            empty=sum(not text for text in samples.texts) if nats is None else sum(not count for _, count in nats),
            scores=self.scored(samples, path),
        )

    @cached_property
    def scores(self) -> Scores:
        """The scores that are kept in the folder."""
        return Scores.read(self.out / FILE, self.report)

    def nats(self, samples: Samples, path: Path) -> list[tuple[float, int]] | None:
        """What the judge gives each text: nats and tokens; None without a judge."""
        judge = self.judge
        if judge is None:
            return None
        return self.scores.once(judge.name, file_sha256(path), lambda: judge.nats(samples.texts))

    def perplexity(self, case: Case, nats: list[tuple[float, int]] | None) -> Estimate | None:
        """Gen PPL; None without a judge, or if no text has a token that the judge scores."""
        if nats is None:
            return None
        if not any(count for _, count in nats):
            self.report(f"no Gen PPL of {case.label}, {case.steps} steps: all {case.num} samples are empty")
            return None
        return perplexity(nats)

    def scored(self, samples: Samples, path: Path) -> dict[str, Score]:
        """The columns of all scorers, in their order."""
        found: dict[str, Score] = {}
        for scorer in self.scorers:
            key, compute = key_of(scorer), partial(score_texts, scorer, samples.texts)
            for name, column in self.scores.once(key, file_sha256(path), compute).items():
                if name in found:
                    raise ValueError(f"two scorers have a column {name!r}: rename one, or measure them one at a time")
                found[name] = summary(key, column)
        return found

    def mauve_obstacle(self, num: int) -> str | None:
        """Why there is no MAUVE of ``num`` samples; None if there is one."""
        if self.real_text is None:
            return "it needs real text to compare with"
        return mauve_obstacle(self.judge, num, len(self.real_text.texts))

    def mauve(self, samples: Samples, path: Path) -> float | None:
        """MAUVE against the real text; None where it cannot be computed."""
        judge, texts = self.judge, [text for text in samples.texts if text]
        if judge is None or self.mauve_obstacle(len(texts)) is not None:
            return None
        name = f"mauve of {file_sha256(path)} against {file_sha256(self.real_text_path)}"
        return self.scores.once(judge.name, name, lambda: mauve(judge.features(texts), self.real_features))

    @cached_property
    def real_features(self) -> Tensor:
        """The judge's features of the real text."""
        if self.judge is None or self.real_text is None:
            raise ValueError("features of real text need a judge and real text: give the sweep both")
        return self.judge.features(self.real_text.texts)


def sample_path(out: Path, case: Case) -> Path:
    """The file that keeps the samples of a case in the folder of a sweep."""
    return out / "samples" / (REAL_TEXT_FILE if case.label == REAL_TEXT else f"{case.key}.jsonl")


def check(cases: Sequence[Case]) -> None:
    """Refuse cases that cannot be measured, before anything is sampled."""
    if not cases:
        raise ValueError("nothing to measure: give at least one case")
    for case in cases:
        if case.steps < 1 or case.num < 1 or case.length < _REPEATED:
            raise ValueError(
                f"{case.label}: steps is {case.steps}, num {case.num}, length {case.length}: steps and num must be at "
                f"least 1, and length {_REPEATED}, as {_REPEATED}-grams are counted"
            )
    if len({case.key for case in cases}) < len(cases):
        raise ValueError("a setting stands twice among those to measure: name each once")


def write_rows(out: Path, rows: Sequence[Row]) -> None:
    """Write quality.json and quality.md."""
    groups = {
        "rows": [row.to_json() for row in rows if not row.real],
        "references": [row.to_json() for row in rows if row.real],
    }
    write_atomically(out / "quality.json", json_text(groups, indent=1))
    parts = [markdown(rows), *(f"{line}\n" for line in remarks(rows)), details(rows)]
    write_atomically(out / "quality.md", "\n".join(parts))


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """The rows of one or several quality.json (or of folders that hold one), each once; real text last."""
    return list(read_places(paths))


def read_places(paths: Sequence[Path]) -> dict[Row, Path]:
    """``read_rows`` with the folder of each row, which keeps its samples and scores."""
    found: dict[Row, Path] = {}
    for path in [path / "quality.json" if path.is_dir() else path for path in paths]:
        try:
            groups = json.loads(path.read_text(encoding="utf-8"))
            rows = [Row.from_json(row) for row in [*groups["rows"], *groups["references"]]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is not a quality.json ({error}): give one that `duality quality` wrote"
            ) from error
        for row in rows:
            found.setdefault(row, path.parent)
    return dict(sorted(told_apart(found).items(), key=lambda pair: pair[0].real))


def told_apart(places: Mapping[Row, Path]) -> dict[Row, Path]:
    """The same rows; those of different runs whose folders have one name get labels that tell them apart."""
    names = run_names(row.run for row in places if not row.real)

    def label(row: Row) -> str:
        own = not row.real and row.label == label_of(row.run.name, row.round, row.checkpoint)
        return label_of(names[row.run], row.round, row.checkpoint) if own else row.label

    return {replace(row, label=label(row)): place for row, place in places.items()}
