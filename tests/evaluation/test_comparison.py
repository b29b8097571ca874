"""duality compare: one table for several recipes, complete, resumable, with a list of the other differences."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.judges import table_judge
from support.runs import quiet, small_recipe
from support.sweep_rows import row as sweep_row
from torch import Tensor

from duality.cli.console import say
from duality.cli.main import main
from duality.data.packing import Sequences
from duality.evaluation.compare import (
    ComparisonRequest,
    _ComparedRecipe,
    _remarks,
    _tokens_seen,
    _training_seconds,
    compare,
    table_lines,
)
from duality.evaluation.judge import Judge
from duality.evaluation.requests import SweepRequest
from duality.evaluation.samples import Case, Samples
from duality.evaluation.sweep import Advance, RunSampler, measure_runs
from duality.models import model as run_model
from duality.recipes import corpus as recipe_corpus
from duality.recipes.recipe import Recipe
from duality.runs.session import show_training
from duality.training.loop import StepRecord
from duality.training.metrics import read_metrics

SMALL = ["data.tokenizer=bytes", "data.length=32", "backbone=nano", "training.batch_size=4", "training.log_every=1"]
NAMES = ["ar-laptop", "mdlm-laptop", "sedd-uniform-laptop"]


def no_display(_recipe: Recipe) -> AbstractContextManager[Callable[[StepRecord], None]]:
    """A training that is not shown."""
    return nullcontext(lambda record: None)


def command(english: Path, out: Path, *more: str) -> list[str]:
    return [
        "compare", *NAMES, "--data", str(english), "--steps", "6", "--out", str(out), "--limit", "6", "--draws", "1",
        *more, "--set", *SMALL,
    ]  # fmt: skip


def test_the_table_has_a_row_for_each(english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(english, tmp_path / "out")) == 0
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["recipe"] for row in rows] == NAMES
    assert [row["kind"] for row in rows] == ["exact", "bound", "bound"]
    for row in rows:
        assert row["tokens_seen"] == 6 * 4 * 32
        assert row["seconds"] == _training_seconds(tmp_path / "out" / row["recipe"])
        assert math.isfinite(row["perplexity_stderr"])
        assert row["samples"] is None
        model = run_model.load(tmp_path / "out" / row["recipe"], quiet)
        assert row["parameters"] == sum(value.numel() for value in model.denoiser.parameters())
        assert row["recipe"] in printed
        validated = [line for line in read_metrics(tmp_path / "out" / row["recipe"]) if "validation_nats" in line]
        assert [line["step"] for line in validated] == [6]  # no validation between the steps that are timed
    table = (tmp_path / "out" / "table.md").read_text()
    assert table.count("\n|") == 4
    # the numbers of the table are those of `duality eval`
    assert main(["eval", str(tmp_path / "out" / "mdlm-laptop"), "--limit", "6", "--draws", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] == pytest.approx(rows[1]["perplexity"])


def test_a_second_call_trains_nothing_again(english: Path, tmp_path: Path) -> None:
    assert main(command(english, tmp_path / "out")) == 0
    first = json.loads((tmp_path / "out" / "table.json").read_text())
    assert main(command(english, tmp_path / "out")) == 0
    assert json.loads((tmp_path / "out" / "table.json").read_text()) == first


def uniform_judge() -> Judge:
    """A judge that gives all four tokens of its vocabulary the same probability."""

    def logits(ids: torch.Tensor, _valid: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, 4)

    return Judge("uniform_judge", lambda text: [len(text) % 4] * 3, logits, 64, 0, "cpu")


def test_a_judge_adds_columns(english: Path, tmp_path: Path) -> None:
    recipes = [small_recipe(english, "training.steps=3", name=name) for name in NAMES]
    plan = ComparisonRequest(tmp_path / "out", 1, 4, uniform_judge(), num_samples=3, sampling_steps=5)
    rows, remarks, _ = compare(recipes, plan, quiet, lambda each: show_training(say, each.training.steps))
    for row, steps in zip(rows, (32, 5, 5)):
        assert row.samples is not None
        assert row.samples.gen_ppl == pytest.approx(4.0)
        assert (row.samples.num, row.samples.steps) == (3, steps)
        saved = (tmp_path / "out" / "samples" / f"{plan.case(recipes[rows.index(row)]).key}.jsonl").read_text()
        assert len(saved.splitlines()) == 1 + 3  # the settings, and the samples
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| Gen PPL |" in table
    assert "3 samples of 32 tokens in each setting" in table
    assert "Gen PPL under uniform_judge" in table
    assert "Real text, cut alike (3 pieces of 32): Gen PPL 4.0 [4.0, 4.0], entropy" in table
    assert "\n\n".join(remarks) in table
    head, *lines = table_lines(rows)
    assert [len(line) for line in lines] == [len(head)] * 3
    written = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [line["samples"]["entropy"] for line in written] == [row.samples.entropy for row in rows if row.samples]


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[Judge, list[int], list[str]]:
    """A judge with the number of texts it read, and the labels of the cases that were sampled."""
    base, read, sampled = table_judge(), list[int](), list[str]()
    original = RunSampler.sample

    def logits(ids: Tensor, valid: Tensor) -> Tensor:
        read.append(len(ids))
        return base.logits(ids, valid)

    def sample(self: RunSampler, case: Case, advance: Advance) -> Samples:
        sampled.append(case.label)
        return original(self, case, advance)

    monkeypatch.setattr(RunSampler, "sample", sample)
    return replace(base, logits=logits), read, sampled


def test_nothing_is_sampled_or_judged_twice(english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [small_recipe(english, "training.steps=3", name=name) for name in NAMES]
    judge, read, sampled = counted(monkeypatch)
    plan = ComparisonRequest(tmp_path / "out", 1, 4, judge, num_samples=3, sampling_steps=5)
    first, remarks, _ = compare(recipes[:2], plan, quiet, no_display)
    assert sampled == NAMES[:2]
    assert sum(read) == 3 * 3  # two models and the real text
    sampled.clear()
    read.clear()
    again, same_remarks, _ = compare(recipes[:2], plan, quiet, no_display)
    assert (again, same_remarks) == (first, remarks)
    assert (sampled, read) == ([], [])
    # one more recipe: only its own samples are made and read
    more, *_ = compare(recipes, plan, quiet, no_display)
    assert more[:2] == first
    assert sampled == NAMES[2:]
    assert sum(read) == 3
    # the same run folder with other weights: its samples are made and read again
    shutil.rmtree(tmp_path / "out" / NAMES[0])
    sampled.clear()
    read.clear()
    other = small_recipe(english, "training.steps=3", "training.seed=7", name=NAMES[0])
    retrained, *_ = compare([other], plan, quiet, no_display)
    assert retrained != first[:1]
    assert sampled == NAMES[:1]
    assert sum(read) == 3


def test_compare_and_quality_give_the_same_numbers(english: Path, tmp_path: Path) -> None:
    """The row of a comparison is the row that `duality quality` measures on the same run, also that of real text."""
    recipes = [small_recipe(english, "training.steps=3", name=name) for name in NAMES[:2]]
    plan = ComparisonRequest(tmp_path / "out", 1, 4, table_judge(), num_samples=3, sampling_steps=5)
    compared, remarks, _ = compare(recipes, plan, quiet, no_display)
    settings = {"ar-laptop": SweepRequest(steps=(None,), num=3), "mdlm-laptop": SweepRequest(steps=(5,), num=3)}
    for recipe, entry in zip(recipes, compared, strict=True):
        run, out = plan.out / recipe.name, tmp_path / f"quality-{recipe.name}"
        row, real = measure_runs([run], settings[recipe.name], judge=table_judge(), out=out, device="cpu")
        assert entry.samples is not None
        assert replace(entry.samples, seconds_per_sample=0.0) == replace(row, seconds_per_sample=0.0)
        assert real.gen_ppl is not None
        assert f"Real text, cut alike (3 pieces of 32): Gen PPL {real.gen_ppl:.1f} [" in "\n".join(remarks)
        assert (plan.out / "samples" / "real-text.jsonl").read_text() == (
            out / "samples" / "real-text.jsonl"
        ).read_text()
    # a sweep into the folder of the comparison finds everything there
    said: list[str] = []
    again = measure_runs(
        [plan.out / "mdlm-laptop"], settings["mdlm-laptop"], judge=table_judge(), out=plan.out, report=said.append
    )
    assert again[0] == compared[1].samples
    assert not any(line.startswith("sampling ") for line in said)


def test_other_differences_are_listed(english: Path) -> None:
    first, second = small_recipe(english, name="mdlm-laptop"), small_recipe(english, name="duo-laptop")
    assert _remarks([first, second], [], []) == []
    third = small_recipe(english, "training.learning_rate=0.5", name="ar-laptop")
    assert _remarks([first, third], [], []) == ["Differs: ar-laptop: training.learning_rate: 0.006 -> 0.5."]


def test_sampling_steps_apply_where_there_is_a_choice(english: Path, tmp_path: Path) -> None:
    duo, ar = (small_recipe(english, "data.length=64", name=name) for name in ("duo-laptop", "ar-laptop"))
    assert ComparisonRequest(tmp_path, sampling_steps=8).case(duo).steps == 8
    assert ComparisonRequest(tmp_path).case(duo).steps == 32
    assert ComparisonRequest(tmp_path, sampling_steps=8).case(ar).steps == 64


def test_what_cannot_be_measured_is_refused_before_training(english: Path, tmp_path: Path) -> None:
    short = small_recipe(english, "data.length=3")
    with pytest.raises(ValueError, match="4-grams are counted"):
        compare([short], ComparisonRequest(tmp_path / "out", judge=table_judge()), quiet, no_display)
    assert not (tmp_path / "out").exists()


def test_the_time_of_training_is_summed_over_its_sessions(tmp_path: Path) -> None:
    logged = ((1, 0, 5.0), (2, 0, 9.0), (3, 2, 10.0), (4, 2, 12.5))
    rows = [{"step": step, "since": since, "seconds": seconds} for step, since, seconds in logged]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _training_seconds(tmp_path) == pytest.approx(9 + 12.5)


def test_tokens_seen_are_real_tokens(tmp_path: Path) -> None:
    """Documents of 3 letters and their separator, in rows of 32: 4 tokens per row, for any length of the row."""
    path = tmp_path / "short.jsonl"
    path.write_text("".join(json.dumps({"text": "abc"}) + "\n" for _ in range(40)), encoding="utf-8")
    chosen = small_recipe(
        path, "data.packing=document", "data.split=document", "training.steps=13", "training.batch_size=8"
    )
    corpus = recipe_corpus.prepare_corpus(chosen, quiet)
    assert _tokens_seen(Sequences(corpus.train, 32, "document"), chosen) == 13 * 8 * 4
    modelled = recipe_corpus.make_sequences(chosen.data, corpus.train, corpus.tokenizer)
    assert modelled.models_padding
    assert _tokens_seen(modelled, chosen) == 13 * 8 * 4


def test_bad_comparisons_are_refused(english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["compare", "mdlm-laptop", "mdlm-laptop", "--data", str(english), "--out", str(tmp_path)], "stands twice"),
        (["compare", "mdlm-labtop"], "did you mean mdlm-laptop"),
        (["compare", "mdlm-laptop", "--samples", "0"], "at least 1"),
        (["compare", "mdlm-laptop", "--limit", "0"], "at least 1"),
        (["compare", "mdlm-laptop", "--sample-steps", "0"], "at least 1"),
        (["compare", "d3pm-absorb-laptop", "--set", "method.num_steps=0"], "at least 1 step"),
        (["compare", "d3pm-absorb-laptop", "--set", "method.training_schedule.eps=0.001"], "must end at the mask"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_the_text_of_rows() -> None:
    samples = sweep_row("r", 64, 100.4, 4.567, low=95.0, high=106.04)
    row = _ComparedRecipe("r", "s", 1_400_000, 2_000_000, 90, "exact", 99.95, 1.26, 2.0, samples)
    assert table_lines([row])[1] == [
        "r", "1.40 M", "2.00 M", "1.5 min", "= 100.0 ± 1.3", "2.000", "exact", "100.4 [95.0, 106.0]", "4.57", "8", "64",
    ]  # fmt: skip
