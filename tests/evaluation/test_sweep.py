"""duality.quality: samples are made once and judged once, what made them is known, and network calls are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.judges import table_judge
from support.runs import quiet, small_recipe
from torch import Tensor

from duality.data.tokenizers import ByteTokenizer
from duality.denoisers.conditioning import Guided
from duality.evaluation.cases import REAL_TEXT, Case, Row
from duality.evaluation.judge import Judge
from duality.evaluation.sweep import Samples, key, measure, read_rows
from duality.evaluation.text_metrics import distinct, generative_perplexity, self_repetition, unigram_entropy
from duality.protocols import Vocabulary
from duality.runs import model as run_model
from duality.runs import session
from duality.runs.model import Model, network
from duality.runs.sampling import count_calls, sample_case, weights_id
from duality.samplers.grids import LINEAR

CASE = Case(label="duo", run=Path("runs/duo"), steps=4, num=3, length=8)


@dataclass
class Desk:
    """A model that writes letters, a judge that is counted, and what was reported."""

    out: Path
    weights: str = "step 1, first"
    written: list[Case] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    name: str = "counted"

    def sample(self, case: Case, advance: Callable[[int], None]) -> Samples:
        self.written.append(case)
        advance(case.steps)
        source = torch.Generator().manual_seed(case.steps + 100 * case.seed)
        tokens = torch.randint(97, 105, (case.num, case.length), generator=source)
        return Samples(tokens, [bytes(row).decode() for row in tokens.tolist()], 0.5, float(case.steps), self.weights)

    @property
    def judge(self) -> Judge:
        base = table_judge()

        def logits(ids: Tensor, real: Tensor) -> Tensor:
            self.read.append(len(ids))
            return base.logits(ids, real)

        return replace(base, logits=logits, name=self.name)

    def measure(self, *cases: Case, judged: bool = True, **options: Any) -> list[Row]:
        self.written.clear()
        self.read.clear()
        self.said.clear()
        return measure(
            cases,
            judge=self.judge if judged else None,
            out=self.out,
            sample=self.sample,
            weights=lambda case: self.weights,
            report=self.said.append,
            **options,
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "out")


def test_a_row_has_the_measures_of_its_samples(desk: Desk) -> None:
    steps: list[int] = []
    (row,) = desk.measure(CASE, advance=steps.append)
    samples = desk.sample(CASE, lambda count: None)
    likely, entropy = generative_perplexity(desk.judge, samples.texts), unigram_entropy(samples.tokens)
    assert (row.gen_ppl, row.stderr, row.low, row.high) == (likely.value, likely.stderr, likely.low, likely.high)
    assert (row.entropy, row.entropy_low, row.entropy_high) == (entropy.value, entropy.low, entropy.high)
    assert (row.distinct_1, row.distinct_2, row.distinct_3) == tuple(distinct(samples.tokens, n) for n in (1, 2, 3))
    assert row.self_repetition == self_repetition(samples.tokens)
    assert (row.nfe, row.seconds_per_sample, row.judge, row.num, row.steps) == (4.0, 0.5, "counted", 3, 4)
    assert steps == [4]


def test_samples_are_saved_with_what_made_them(desk: Desk) -> None:
    case = replace(CASE, seed=7, round=2, tail="greedy", eta=0.5)
    desk.measure(case)
    path = desk.out / "samples" / f"{key(case)}.jsonl"
    head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    samples = desk.sample(case, lambda count: None)
    assert head["case"]["seed"] == 7
    assert (head["case"]["round"], head["case"]["eta"], head["weights"]) == (2, 0.5, "step 1, first")
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert {line["seed"] for line in lines} == {7}
    assert [line["tokens"] for line in lines] == samples.tokens.tolist()
    assert [line["text"] for line in lines] == samples.texts


def test_a_second_call_neither_samples_nor_judges(desk: Desk) -> None:
    cases = [CASE, replace(CASE, steps=8), replace(CASE, tail="greedy")]
    first = desk.measure(*cases)
    assert desk.written == cases
    assert desk.read
    assert desk.measure(*cases) == first
    assert desk.written == []
    assert desk.read == []
    desk.name = "another"
    assert desk.measure(*cases) != first
    assert desk.written == []
    assert desk.read


def test_only_a_new_setting_is_sampled(desk: Desk) -> None:
    """Any field but the label makes other samples."""
    desk.measure(CASE)
    assert len(desk.measure(replace(CASE, label="renamed"))) == 1
    assert desk.written == []
    changes: list[dict[str, Any]] = [
        {"run": Path("runs/other")}, {"steps": 5}, {"num": 4}, {"length": 9}, {"seed": 1}, {"round": 0},
        {"sampler": "psi"}, {"eta": 0.1}, {"tail": "greedy"}, {"grid": "cosine"}, {"top_p": 0.9}, {"temperature": 0.9},
    ]  # fmt: skip
    assert {name for change in changes for name in change} == {*Case.__dataclass_fields__} - {"label"}
    for change in changes:
        other = replace(CASE, **change)
        desk.measure(other)
        assert desk.written == [other]


def test_other_weights_are_sampled_again(desk: Desk) -> None:
    desk.measure(CASE)
    desk.weights = "step 2, second"
    desk.measure(CASE)
    assert desk.written == [CASE]
    assert any("other weights (step 1, first, now step 2, second): sampling again" in line for line in desk.said)
    desk.measure(CASE)
    assert desk.written == []


@pytest.mark.parametrize("damage", ["cut", "lost line", "empty", "twice", "no head", "not text"])
def test_damaged_samples_are_made_again(desk: Desk, damage: str) -> None:
    (first,) = desk.measure(CASE)
    path = desk.out / "samples" / f"{key(CASE)}.jsonl"
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
    assert desk.measure(CASE) == [first]
    assert desk.written == [CASE]
    assert any(f"{path} is damaged or incomplete" in line and "sampling again" in line for line in desk.said)
    assert path.read_text() == text


def test_damaged_scores_are_made_again(desk: Desk) -> None:
    first = desk.measure(CASE)
    path = desk.out / "scores.json"
    path.write_text(path.read_text()[:-5])
    assert desk.measure(CASE) == first
    assert desk.written == []
    assert desk.read
    assert any("judging again" in line for line in desk.said)


def reference() -> Samples:
    texts = ["abcdefgh", "the cats", "sat on a", "mat then"]
    return Samples(torch.tensor([list(text.encode()) for text in texts]), texts, 0.0, 0.0, "validation")


def test_real_text_is_a_row(desk: Desk) -> None:
    rows = desk.measure(CASE, reference=reference())
    assert [row.label for row in rows] == ["duo", REAL_TEXT]
    assert rows[-1].real
    assert rows[-1].gen_ppl == generative_perplexity(desk.judge, reference().texts).value
    assert (rows[-1].num, rows[-1].length, rows[-1].steps) == (4, 8, 0)
    assert desk.measure(CASE, reference=reference()) == rows
    assert desk.read == []
    assert "Real text, cut alike (4 pieces of 8)" in (desk.out / "quality.md").read_text()


def test_rows_are_read_and_joined(desk: Desk, tmp_path: Path) -> None:
    rows = desk.measure(CASE, replace(CASE, steps=8), reference=reference())
    assert read_rows([desk.out]) == rows
    other = Desk(tmp_path / "other")
    more = other.measure(replace(CASE, label="mdlm", run=Path("runs/mdlm")), reference=reference())
    assert read_rows([desk.out / "quality.json", other.out]) == [*rows[:2], more[0], rows[2]]
    (other.out / "quality.json").write_text('{"rows": [{"label": "x", "run": "y"}], "references": []}')
    with pytest.raises(ValueError, match=r"is not a quality\.json"):
        read_rows([other.out])


def test_what_is_measured_is_written_at_once(desk: Desk) -> None:
    """The second case fails; the first is there, in files that any JSON reader takes."""

    def sample(case: Case, advance: Callable[[int], None]) -> Samples:
        if case.steps == 8:
            raise RuntimeError("out of memory")
        return desk.sample(case, advance)

    with pytest.raises(RuntimeError):
        measure(
            [replace(CASE, num=1), replace(CASE, steps=8)],
            judge=desk.judge,
            out=desk.out,
            sample=sample,
            weights=lambda case: "step 1, first",
            report=quiet,
        )
    (row,) = read_rows([desk.out])
    assert (row.stderr, row.low, row.entropy_high) == (None, None, None)
    assert row.gen_ppl is not None

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads((desk.out / "quality.json").read_text(), parse_constant=refuse)


def test_without_a_judge_there_are_the_other_measures(desk: Desk) -> None:
    (row,) = desk.measure(CASE, judged=False)
    assert (row.judge, row.gen_ppl, row.stderr, row.low, row.high, row.mauve) == (None,) * 6
    assert row.entropy > 0
    assert not (desk.out / "scores.json").exists()


def test_mauve_is_asked_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """With features that are the judge's table; said once if it cannot be had."""
    desk.measure(CASE, replace(CASE, steps=8), reference=reference())
    assert len([line for line in desk.said if line.startswith("no MAUVE: it needs a judge that shows")]) == 1
    asked: list[tuple[Tensor, Tensor]] = []

    def fake(samples: Tensor, references: Tensor) -> float:
        asked.append((samples, references))
        return 0.75

    monkeypatch.setattr("duality.evaluation.sweep.mauve", fake)
    monkeypatch.setattr("duality.evaluation.sweep.mauve_obstacle", lambda judge, num, references: None)
    passes: list[int] = []

    def hidden(ids: Tensor, real: Tensor) -> Tensor:
        passes.append(len(ids))
        return table_judge().logits(ids, real)

    judge = replace(desk.judge, hidden=hidden)
    cases = [CASE, replace(CASE, steps=8)]
    for _ in range(2):
        rows = measure(
            cases, judge=judge, out=desk.out, sample=desk.sample, weights=lambda case: desk.weights, report=quiet,
            reference=reference(),
        )  # fmt: skip
        assert [row.mauve for row in rows] == [0.75, 0.75, None]
    assert len(asked) == 2
    assert sorted(passes) == [3, 3, 4]  # the real text once, each case once
    assert torch.equal(asked[0][1], judge.features(reference().texts))
    assert torch.equal(asked[1][0], judge.features(desk.sample(cases[1], lambda count: None).texts))


def test_bad_cases_are_refused(desk: Desk) -> None:
    for bad in (replace(CASE, steps=0), replace(CASE, num=0), replace(CASE, length=3)):
        with pytest.raises(ValueError, match="must be at least 1, and length 4"):
            desk.measure(CASE, bad)
        assert desk.written == []
    with pytest.raises(ValueError, match="stands twice"):
        desk.measure(CASE, replace(CASE, label="again"))
    with pytest.raises(ValueError, match="nothing to measure"):
        desk.measure()
    wrong = replace(desk.sample(CASE, lambda count: None), texts=["one"])
    with pytest.raises(ValueError, match="asked for 3 samples of 8 tokens, got 1 texts"):
        measure(
            [CASE], judge=None, out=desk.out, sample=lambda case, advance: wrong, weights=lambda case: "", report=quiet
        )


# With networks.


def untrained(english: Path, name: str, *assignments: str) -> Model:
    """A model of 32 x 2 that has learnt nothing, with weights that are not zero."""
    chosen = small_recipe(english, *assignments, name=name)
    tokenizer = ByteTokenizer()
    denoiser = network(chosen, Vocabulary(tokenizer.vocab_size))
    generator = torch.Generator().manual_seed(0)
    for value in denoiser.parameters():
        value.data += 0.1 * torch.randn(value.shape, generator=generator)
    return Model(chosen, 5, denoiser.requires_grad_(False), tokenizer)


@pytest.mark.parametrize(("name", "steps"), [("duo-laptop", 6), ("ar-laptop", 32), ("mdlm-laptop", 64)])
def test_calls_are_counted(english: Path, name: str, steps: int) -> None:
    """One for each step and sample; left to right one for each token; a memoised belief is asked more seldom."""
    model = untrained(english, name)
    case = replace(CASE, steps=steps, num=5, length=32, seed=3)
    told: list[int] = []
    samples = sample_case(model, case, lambda denoiser: denoiser, model.sampler, None, "cpu", 2, told.append)
    assert sum(told) == 3 * steps  # batches of 2, 2 and 1
    if name == "mdlm-laptop":
        assert 1 < samples.nfe < steps
    else:
        assert samples.nfe == steps
    assert samples.seconds_per_sample > 0
    assert samples.weights == weights_id(model)
    expected = model.generate(num=5, length=32, steps=steps, seed=3)
    assert torch.equal(samples.tokens, expected)
    assert samples.texts == [model.tokenizer.decode(row) for row in expected.tolist()]


def test_a_case_is_sampled_as_it_says(english: Path) -> None:
    """Tail, grid, sampler and wrapper reach the sampling loop."""
    model = untrained(english, "duo-laptop")
    seen: list[str] = []

    def grid(schedule: Any, steps: int) -> Tensor:
        seen.append("grid")
        return LINEAR(schedule, steps)

    def wrap(denoiser: Any) -> Any:
        seen.append("wrap")
        return denoiser

    case = replace(CASE, tail="greedy", length=32)
    samples = sample_case(model, case, wrap, model.named_sampler("ancestral"), grid, "cpu", 8, lambda count: None)
    assert sorted(set(seen)) == ["grid", "wrap"]
    assert torch.equal(samples.tokens, model.generate(num=3, length=32, steps=4, tail="greedy"))
    assert not torch.equal(samples.tokens, model.generate(num=3, length=32, steps=4))


def test_guidance_asks_twice(english: Path) -> None:
    chosen = small_recipe(english)
    tokenizer = ByteTokenizer()
    model = Model(chosen, 5, network(chosen, Vocabulary(tokenizer.vocab_size, 2)), tokenizer, ("a", "b"))
    case = replace(CASE, length=16)
    samples = sample_case(model, case, lambda d: Guided(d, 0, 2.0), model.sampler, None, "cpu", 8, lambda count: None)
    assert samples.nfe == 2 * case.steps


def test_counting_ends_with_its_context() -> None:
    layer = torch.nn.Linear(2, 2)
    with count_calls(layer) as calls:
        layer(torch.zeros(3, 2))
        layer(torch.zeros(4, 2))
    layer(torch.zeros(5, 2))
    assert calls.rows == 7


def test_weights_are_told_apart(english: Path) -> None:
    model = untrained(english, "duo-laptop")
    before = weights_id(model)
    assert before.startswith("step 5, ")
    assert weights_id(untrained(english, "duo-laptop")) == before
    assert weights_id(replace(model, step=6)) != before
    next(model.denoiser.parameters()).data.view(-1)[0] += 1e-6
    assert weights_id(model) != before


def test_a_run_is_measured(novel: Path, tmp_path: Path) -> None:
    """From training to the table, and again from what was kept."""
    chosen = small_recipe(novel, "training.steps=3")
    session.train(chosen, tmp_path / "run", report=quiet)
    model = run_model.load(tmp_path / "run", quiet)
    sampled: list[int] = []

    def sample(case: Case, advance: Callable[[int], None]) -> Samples:
        sampled.append(case.steps)
        return sample_case(model, case, lambda denoiser: denoiser, model.sampler, None, "cpu", 4, advance)

    cases = [Case(label="duo", run=tmp_path / "run", steps=steps, num=2, length=32) for steps in (2, 4)]
    for _ in range(2):
        rows = measure(
            cases, judge=table_judge(), out=tmp_path / "out", sample=sample, weights=lambda case: weights_id(model),
            report=quiet,
        )  # fmt: skip
        assert [row.nfe for row in rows] == [2, 4]
    assert sampled == [2, 4]
    assert "| 4 |" in (tmp_path / "out" / "quality.md").read_text()
