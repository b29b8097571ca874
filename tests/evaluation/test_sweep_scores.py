"""The sweep with scorers, and with samples that have no text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.judges import generative_perplexity
from support.letters import CASE, Letters, four_texts
from support.runs import quiet

from duality.evaluation.samples import Case, Samples, read_rows
from duality.evaluation.scorers import Numbers
from duality.evaluation.sweep import Sweep


@pytest.fixture
def letters(tmp_path: Path) -> Letters:
    return Letters(tmp_path / "out")


@dataclass
class Counting:
    """A scorer whose calls are counted: the share of the letter a; None for an empty text."""

    name: str = "letters"
    version: str = "1"
    columns: tuple[str, ...] = ("share_of_a",)
    calls: int = 0

    def __call__(self, texts: Sequence[str]) -> Numbers:
        self.calls += 1
        return {"share_of_a": [text.count("a") / len(text) if text else None for text in texts]}


def test_scores_are_columns_of_a_row_and_are_kept(letters: Letters) -> None:
    """Text by text in scores.json; scored once, and again by another version or for other samples."""
    scorer, cases = Counting(), [CASE, replace(CASE, steps=8)]
    rows = Sweep(letters.out, letters, quiet, None, four_texts(), [scorer]).measure(cases)
    texts = letters.sample(CASE, lambda count: None).texts
    shares = [text.count("a") / 8 for text in texts]
    assert rows[0].scores["share_of_a"].value == pytest.approx(sum(shares) / 3)
    assert (rows[0].scores["share_of_a"].count, rows[0].scores["share_of_a"].scorer) == (3, "letters (1)")
    assert rows[-1].scores["share_of_a"].value == pytest.approx(5 / 32)  # of real text
    assert scorer.calls == 3
    kept = json.loads((letters.out / "scores.json").read_text())["letters (1)"]
    assert {"share_of_a": shares} in kept.values()
    assert Sweep(letters.out, letters, quiet, None, four_texts(), [scorer]).measure(cases) == rows
    assert list(read_rows([letters.out])) == rows
    assert scorer.calls == 3
    scorer.version = "2"
    assert (
        Sweep(letters.out, letters, quiet, None, None, [scorer]).row(CASE).scores["share_of_a"].scorer != "letters (1)"
    )
    assert scorer.calls == 4


def test_two_scorers_need_columns_of_their_own(letters: Letters) -> None:
    with pytest.raises(ValueError, match="two scorers have a column 'share_of_a'"):
        Sweep(letters.out, letters, quiet, None, None, [Counting(), Counting("other")]).row(CASE)


@dataclass
class Silent(Letters):
    """Some of its samples have no text: as many as there are steps."""

    def sample(self, case: Case, advance: Callable[[int], None]) -> Samples:
        samples = super().sample(case, advance)
        return replace(samples, texts=[""] * case.steps + samples.texts[case.steps :])


def test_samples_without_text_end_no_sweep(tmp_path: Path) -> None:
    """They add 0 nats and 0 tokens, and are counted; a case without any text has no Gen PPL and no scores."""
    source = Silent(tmp_path / "out")
    cases = [replace(CASE, steps=steps, num=4) for steps in (2, 4)]
    texts = source.sample(cases[0], lambda count: None).texts
    some, none = Sweep(source.out, source, source.said.append, source.judge, None, [Counting()]).measure(cases)
    assert (some.empty, none.empty) == (2, 4)
    assert some.gen_ppl == generative_perplexity(source.judge, texts[2:]).value
    assert (some.scores["share_of_a"].count, none.scores["share_of_a"].count) == (2, 0)
    assert (none.gen_ppl, none.low, none.scores["share_of_a"].value) == (None, None, None)
    assert any("no Gen PPL of duo, 4 steps: all 4 samples are empty" in line for line in source.said)
    assert "6 of 8 samples are empty" in (source.out / "quality.md").read_text()
    (unjudged,) = Sweep(source.out, source, quiet).measure(cases[:1])
    assert unjudged.empty == 2
