"""The sweep: the one pipeline from cases to rows, for `duality quality` and `duality compare`.

    case  ->  samples (kept in OUT/samples/)  ->  scores of judge and scorers (kept in OUT/scores.json)  ->  row

What must hold: saved samples are not made again, and a judge or scorer does not score the same samples again, unless
the weights, the settings or a file changed; all rows of a sweep have the same judge, scorers and real text; a sample
without text ends no sweep. The ranks of a job (``ranks``) sample together; rank 0 keeps and scores.

``measure`` also writes the rows into OUT/quality.json (``samples``) and OUT/quality.md (``tables``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from duality.evaluation.metrics import distinct, mauve, mauve_obstacle, perplexity, self_repetition, unigram_entropy
from duality.evaluation.scorers import Scorer, key_of, score_texts, summary
from duality.evaluation.sweep.samples import (
    REAL_TEXT,
    Case,
    Row,
    Samples,
    Score,
    find_samples,
    sample_path,
    write_samples,
)
from duality.evaluation.tables import full_table, remarks, short_table
from duality.files.atomic import file_sha256, json_text, write_atomically
from duality.files.kept_scores import FILE, Scores
from duality.files.progress import Reporter
from duality.ranks import job

if TYPE_CHECKING:
    from duality.evaluation.judge import Judge

Advance = Callable[[int], None]

_REPEATED = 4  # n of self-repetition; a sample has to be as long


class _SampleSource(Protocol):
    """Makes samples. ``weights`` identifies the weights that ``sample`` would use, so that kept samples can be trusted.

    ``sample`` calls ``advance(1)`` after every step of every batch.
    """

    def sample(self, case: Case, advance: Advance) -> Samples: ...
    def weights(self, case: Case) -> str: ...


@dataclass(frozen=True)
class Sweep:
    """Cases measured in the same manner: one judge, the same scorers, one folder that keeps samples and scores."""

    out: Path
    source: _SampleSource
    report: Reporter
    judge: Judge | None = None
    real_text: Samples | None = None
    scorers: Sequence[Scorer] = ()

    def measure(self, cases: Sequence[Case], advance: Advance = lambda count: None) -> list[Row]:
        """A row for every case, and those of real text last; the files are written after every case."""
        check_cases(cases)
        for reason in dict.fromkeys(self._mauve_obstacle(case.num) for case in cases):
            if reason is not None:
                self.report(f"no MAUVE: {reason}")
        real = job().once(self.real_rows)
        rows: list[Row] = []
        for case in cases:
            rows.append(self.row(case, advance))
            job().once(lambda: self._write_rows(rows, real))
        return [*rows, *real]

    def _write_rows(self, rows: Sequence[Row], real: Sequence[Row]) -> None:
        """Write quality.json and quality.md."""
        groups = {"rows": [row.to_json() for row in rows], "references": [row.to_json() for row in real]}
        write_atomically(self.out / "quality.json", json_text(groups, indent=1))
        every = [*rows, *real]
        parts = [short_table(every), *(f"{line}\n" for line in remarks(every)), full_table(every)]
        write_atomically(self.out / "quality.md", "\n".join(parts))

    def row(self, case: Case, advance: Advance = lambda count: None) -> Row:
        """The row of a case; its samples are made unless they are kept."""
        path, weights = sample_path(self.out, case), self.source.weights(case)
        kept = job().once(lambda: find_samples(path, case, weights, self.report))
        if kept is None:
            self.report(f"sampling {case.label}, {case.num} sequences in {case.steps} steps")
            made = kept = self.source.sample(case, advance)
            job().once(lambda: write_samples(path, case, made))
        return job().once(partial(self._measure_samples, case, kept, path))

    def real_rows(self) -> list[Row]:
        """The row of real text, if there is any; it is kept as samples are."""
        if self.real_text is None:
            return []
        num, length = self.real_text.tokens.shape
        case = Case(label=REAL_TEXT, run=Path(), steps=0, num=num, length=length, sampler="none", tail="none")
        path = sample_path(self.out, case)
        write_samples(path, case, self.real_text)
        return [self._measure_samples(case, self.real_text, path)]

    def _measure_samples(self, case: Case, samples: Samples, path: Path) -> Row:
        """The measures of the samples in ``path``."""
        tokens, judge, checksum = samples.tokens, self.judge, file_sha256(path)
        nats, likely = None, None
        if judge is not None:
            nats = self._scores.once(judge.name, checksum, lambda: judge.nats(samples.texts))
            if any(count for _, count in nats):
                likely = perplexity(nats)
            else:
                self.report(f"no Gen PPL of {case.label}, {case.steps} steps: all {case.num} samples are empty")
        entropy = unigram_entropy(tokens)
        stderr, low, high = (None, None, None) if likely is None else likely.spread
        _, entropy_low, entropy_high = entropy.spread
        return Row(
            **{each.name: getattr(case, each.name) for each in fields(Case)},
            judge=None if judge is None else judge.name,
            gen_ppl=None if likely is None else likely.value,
            stderr=stderr,
            low=low,
            high=high,
            entropy=entropy.value,
            entropy_low=entropy_low,
            entropy_high=entropy_high,
            distinct_1=distinct(tokens, 1),
            distinct_2=distinct(tokens, 2),
            distinct_3=distinct(tokens, 3),
            self_repetition=self_repetition(tokens, _REPEATED),
            mauve=None if case.label == REAL_TEXT else self._mauve(samples, checksum),
            nfe=samples.nfe,
            seconds_per_sample=samples.seconds_per_sample,
            empty=sum(not text for text in samples.texts) if nats is None else sum(not count for _, count in nats),
            scores=self._score_columns(samples, checksum),
        )

    @cached_property
    def _scores(self) -> Scores:
        """The scores that are kept in the folder."""
        return Scores.read(self.out / FILE, self.report)

    def _score_columns(self, samples: Samples, checksum: str) -> dict[str, Score]:
        """The columns of all scorers, in their order."""
        found: dict[str, Score] = {}
        for scorer in self.scorers:
            key, compute = key_of(scorer), partial(score_texts, scorer, samples.texts)
            for name, column in self._scores.once(key, checksum, compute).items():
                if name in found:
                    raise ValueError(f"two scorers have a column {name!r}: rename one, or measure them one at a time")
                found[name] = summary(key, column)
        return found

    def _mauve_obstacle(self, num: int) -> str | None:
        """Why there is no MAUVE of ``num`` samples; None if there is one."""
        return mauve_obstacle(self.judge, num, None if self.real_text is None else len(self.real_text.texts))

    def _mauve(self, samples: Samples, checksum: str) -> float | None:
        """MAUVE against the real text; None where it cannot be computed."""
        judge, real, texts = self.judge, self.real_text, [text for text in samples.texts if text]
        if judge is None or real is None or self._mauve_obstacle(len(texts)) is not None:
            return None
        name = f"mauve of {checksum} against {file_sha256(self.out / 'samples' / 'real-text.jsonl')}"
        return self._scores.once(judge.name, name, lambda: mauve(judge.features(texts), self._real_features))

    @cached_property
    def _real_features(self) -> Tensor:
        """The judge's features of the real text."""
        if self.judge is None or self.real_text is None:
            raise ValueError("features of real text need a judge and real text: give the sweep both")
        return self.judge.features(self.real_text.texts)


def check_cases(cases: Sequence[Case]) -> None:
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
