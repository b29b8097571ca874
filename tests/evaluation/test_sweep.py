"""The sweep: samples are made once and judged once, and their files record their settings."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.judges import generative_perplexity, table_judge
from support.letters import CASE, Letters, four_texts
from support.runs import quiet
from torch import Tensor

from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.evaluation.metrics import distinct, self_repetition, unigram_entropy
from duality.evaluation.samples import REAL_TEXT, Case, Samples, read_rows
from duality.evaluation.sweep import Sweep
from duality.tokenizers.tokenizer import ByteTokenizer


@pytest.fixture
def letters(tmp_path: Path) -> Letters:
    return Letters(tmp_path / "out")


def test_a_row_has_the_measures_of_its_samples(letters: Letters) -> None:
    steps: list[int] = []
    (row,) = letters.sweep().measure([CASE], steps.append)
    samples = letters.sample(CASE, lambda count: None)
    likely, entropy = generative_perplexity(letters.judge, samples.texts), unigram_entropy(samples.tokens)
    assert (row.gen_ppl, row.stderr, row.low, row.high) == (likely.value, likely.stderr, likely.low, likely.high)
    assert (row.entropy, row.entropy_low, row.entropy_high) == (entropy.value, entropy.low, entropy.high)
    assert (row.distinct_1, row.distinct_2, row.distinct_3) == tuple(distinct(samples.tokens, n) for n in (1, 2, 3))
    assert row.self_repetition == self_repetition(samples.tokens)
    assert (row.nfe, row.seconds_per_sample, row.judge, row.num, row.steps) == (4.0, 0.5, "counted", 3, 4)
    assert steps == [4]


def test_samples_are_saved_with_their_settings(letters: Letters) -> None:
    case = replace(CASE, seed=7, round=2, tail="greedy", eta=0.5)
    letters.measure(case)
    path = letters.out / "samples" / f"{case.key}.jsonl"
    head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    samples = letters.sample(case, lambda count: None)
    assert head["case"]["seed"] == 7
    assert (head["case"]["round"], head["case"]["eta"], head["weights"]) == (2, 0.5, "step 1, first")
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert {line["seed"] for line in lines} == {7}
    assert [line["tokens"] for line in lines] == samples.tokens.tolist()
    assert [line["text"] for line in lines] == samples.texts


def test_a_second_call_neither_samples_nor_judges(letters: Letters) -> None:
    cases = [CASE, replace(CASE, steps=8), replace(CASE, tail="greedy")]
    first = letters.measure(*cases)
    assert letters.written == cases
    assert letters.read
    assert letters.measure(*cases) == first
    assert letters.written == []
    assert letters.read == []
    letters.name = "another"
    assert letters.measure(*cases) != first
    assert letters.written == []
    assert letters.read


def test_only_a_new_setting_is_sampled(letters: Letters) -> None:
    """Every field except the label changes the samples."""
    letters.measure(CASE)
    assert len(letters.measure(replace(CASE, label="renamed"))) == 1
    assert letters.written == []
    changes: list[dict[str, Any]] = [
        {"run": Path("runs/other")}, {"steps": 5}, {"num": 4}, {"length": 9}, {"seed": 1}, {"round": 0},
        {"sampler": "psi"}, {"eta": 0.1}, {"tail": "greedy"}, {"grid": "cosine"}, {"top_p": 0.9}, {"temperature": 0.9},
        {"checkpoint": 10}, {"precision": "bfloat16"},
    ]  # fmt: skip
    assert {name for change in changes for name in change} == {*Case.__dataclass_fields__} - {"label"}
    for change in changes:
        other = replace(CASE, **change)
        letters.measure(other)
        assert letters.written == [other]


def test_other_weights_are_sampled_again(letters: Letters) -> None:
    letters.measure(CASE)
    letters.weights_now = "step 2, second"
    letters.measure(CASE)
    assert letters.written == [CASE]
    assert any("other weights (step 1, first, now step 2, second): sampling again" in line for line in letters.said)
    letters.measure(CASE)
    assert letters.written == []


@pytest.mark.parametrize("damage", ["cut", "lost line", "empty", "twice", "no head", "not text"])
def test_damaged_samples_are_made_again(letters: Letters, damage: str) -> None:
    (first,) = letters.measure(CASE)
    path = letters.out / "samples" / f"{CASE.key}.jsonl"
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    damaged = {
        "cut": text[:-20],
        "lost line": "".join(lines[:-1]),
        "empty": "",
        "twice": "".join([*lines[:-1], lines[1]]),
        "no head": "".join(lines[1:]),
        "not text": "[1]\n" * 4,
    }
    path.write_text(damaged[damage])
    assert letters.measure(CASE) == [first]
    assert letters.written == [CASE]
    assert any(f"{path} is damaged or incomplete" in line and "sampling again" in line for line in letters.said)
    assert path.read_text() == text


def test_damaged_scores_are_made_again(letters: Letters) -> None:
    first = letters.measure(CASE)
    path = letters.out / "scores.json"
    path.write_text(path.read_text()[:-5])
    assert letters.measure(CASE) == first
    assert letters.written == []
    assert letters.read
    assert any("judging again" in line for line in letters.said)


def test_real_text_is_a_row(letters: Letters) -> None:
    rows = letters.measure(CASE, real=four_texts())
    assert [row.label for row in rows] == ["duo", REAL_TEXT]
    assert rows[-1].real
    assert rows[-1].gen_ppl == generative_perplexity(letters.judge, four_texts().texts).value
    assert (rows[-1].num, rows[-1].length, rows[-1].steps) == (4, 8, 0)
    assert letters.measure(CASE, real=four_texts()) == rows
    assert letters.read == []
    assert "Real text, cut alike (4 pieces of 8)" in (letters.out / "quality.md").read_text()


def test_measures_of_two_known_texts(letters: Letters) -> None:
    """abab has two tokens of equal frequency, abcd has four: entropies log 2 and log 4."""
    texts = ["abab", "abcd"]
    samples = Samples(torch.tensor([list(text.encode()) for text in texts]), texts, 0.0, 0.0, "two")
    row = letters.sweep(real=samples).real_rows()[0]
    assert row.entropy == pytest.approx(1.5 * math.log(2))
    assert row.gen_ppl == generative_perplexity(letters.judge, texts).value
    assert (row.num, row.judge) == (2, "counted")


def test_rows_are_read_and_joined(letters: Letters, tmp_path: Path) -> None:
    rows = letters.measure(CASE, replace(CASE, steps=8), real=four_texts())
    assert list(read_rows([letters.out])) == rows
    other = Letters(tmp_path / "other")
    more = other.measure(replace(CASE, label="mdlm", run=Path("runs/mdlm")), real=four_texts())
    assert list(read_rows([letters.out / "quality.json", other.out])) == [*rows[:2], more[0], rows[2]]
    (other.out / "quality.json").write_text('{"rows": [{"label": "x", "run": "y"}], "references": []}')
    with pytest.raises(ValueError, match=r"is not a quality\.json"):
        read_rows([other.out])
    text = (letters.out / "quality.json").read_text()
    (other.out / "quality.json").write_text(re.sub(r'"entropy": [\d.]+', '"entropy": "high"', text))
    with pytest.raises(ValueError, match=r"is not a quality\.json \(Row\.entropy is 'high': it must be a number\)"):
        read_rows([other.out])


def test_a_row_is_written_as_soon_as_it_is_measured(letters: Letters) -> None:
    """The second case fails; the row of the first is saved, as valid JSON."""
    letters.fails_at = 8
    with pytest.raises(RuntimeError):
        letters.measure(replace(CASE, num=1), replace(CASE, steps=8))
    (row,) = list(read_rows([letters.out]))
    assert (row.stderr, row.low, row.entropy_high) == (None, None, None)
    assert row.gen_ppl is not None

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads((letters.out / "quality.json").read_text(), parse_constant=refuse)


def test_without_a_judge_there_are_the_other_measures(letters: Letters) -> None:
    (row,) = letters.measure(CASE, judged=False)
    assert (row.judge, row.gen_ppl, row.stderr, row.low, row.high, row.mauve) == (None,) * 6
    assert row.entropy > 0
    assert not (letters.out / "scores.json").exists()


def test_mauve_is_computed_once(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    """With features from the judge's table; if it cannot be computed, that is reported once."""
    letters.measure(CASE, replace(CASE, steps=8), real=four_texts())
    assert len([line for line in letters.said if line.startswith("no MAUVE: it needs a judge that shows")]) == 1
    computed: list[tuple[Tensor, Tensor]] = []

    def fake(samples: Tensor, references: Tensor) -> float:
        computed.append((samples, references))
        return 0.75

    monkeypatch.setattr("duality.evaluation.sweep.mauve", fake)
    monkeypatch.setattr(Sweep, "_why_no_mauve", lambda sweep, num: None)
    passes: list[int] = []

    def hidden(ids: Tensor, valid: Tensor) -> Tensor:
        passes.append(len(ids))
        return table_judge().logits(ids, valid)

    judge = replace(letters.judge, hidden=hidden)
    cases = [CASE, replace(CASE, steps=8)]
    for _ in range(2):
        rows = Sweep(letters.out, letters, quiet, judge, four_texts()).measure(cases)
        assert [row.mauve for row in rows] == [0.75, 0.75, None]
    assert len(computed) == 2
    assert sorted(passes) == [3, 3, 4]  # the real text once, each case once
    assert torch.equal(computed[0][1], judge.features(four_texts().texts))
    assert torch.equal(computed[1][0], judge.features(letters.sample(cases[1], lambda count: None).texts))


def test_bad_cases_are_refused(letters: Letters) -> None:
    for bad in (replace(CASE, steps=0), replace(CASE, num=0), replace(CASE, length=3)):
        with pytest.raises(ValueError, match="must be at least 1, and length 4"):
            letters.measure(CASE, bad)
        assert letters.written == []
    with pytest.raises(ValueError, match="stands twice"):
        letters.measure(CASE, replace(CASE, label="again"))
    with pytest.raises(ValueError, match="nothing to measure"):
        letters.measure()
    short = replace(CASE, length=5)
    with pytest.raises(ValueError, match=r"asked for 3 samples of 8 tokens, got tokens of shape \(3, 5\)"):
        letters.sample(short, lambda count: None).write(letters.out, CASE)
    with pytest.raises(ValueError, match="1 texts and 3 rows of tokens"):
        replace(letters.sample(CASE, lambda count: None), texts=["one"])


@pytest.mark.parametrize("content", ["[1, 2]", '"text"', "{"])
def test_scores_of_another_form_are_made_again(letters: Letters, content: str) -> None:
    first = letters.measure(CASE)
    (letters.out / "scores.json").write_text(content)
    assert letters.measure(CASE) == first
    assert letters.read
    assert any("judging again" in line for line in letters.said)


def test_a_single_row_is_the_row_of_a_sweep(letters: Letters) -> None:
    """``compare`` measures one row at a time, ``quality`` all rows at once: the same rows from the same files."""
    cases = [CASE, replace(CASE, steps=8)]
    expected = letters.measure(*cases, real=four_texts())
    letters.written.clear()
    letters.read.clear()
    sweep = letters.sweep(real=four_texts())
    assert [*map(sweep.row, cases), *sweep.real_rows()] == expected
    assert letters.written == []
    assert letters.read == []


# Real text.


def test_real_text_is_evenly_spread(make_store: Callable[..., TokenStore]) -> None:
    """Of 25 sequences of 4 bytes, every fifth; the last, which is shorter, is never taken."""
    text = "".join(chr(97 + number % 26) for number in range(98))
    sequences = Sequences(make_store([text]), 4)
    assert len(sequences) == 25
    found = Samples.cut_real_text(sequences, ByteTokenizer(), 5)
    assert found is not None
    assert found.texts == [text[start : start + 4] for start in (0, 20, 40, 60, 80)]
    assert found.tokens.tolist() == [list(piece.encode()) for piece in found.texts]
    everything = Samples.cut_real_text(sequences, ByteTokenizer(), 1000)
    assert everything is not None
    assert everything.texts == [text[start : start + 4] for start in range(0, 96, 4)]


def test_real_text_of_documents_has_no_padded_rows(make_store: Callable[..., TokenStore]) -> None:
    """Documents of 3, 9 and 5 bytes and their separators, in rows of 4: 1, 3 and 2 sequences."""
    sequences = Sequences(make_store(["abc", "defghijkl", "mnopq"]), 4, "document")
    found = Samples.cut_real_text(sequences, ByteTokenizer(), 6)
    assert found is not None
    assert [row for row in found.tokens.tolist() if 0 in row] == []
    assert found.texts[1:] == ["defg", "hijk", "mnop"]
    assert found.texts[0].startswith("abc")  # with its separator it is a whole row
    assert Samples.cut_real_text(Sequences(make_store(["abc", "de"]), 8, "document"), ByteTokenizer(), 6) is None
