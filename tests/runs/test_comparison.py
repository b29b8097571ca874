"""duality compare: one table for several recipes, complete, resumable, and frank about what else differs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from support.runs import quiet, small_recipe

from duality.cli.console import training_display
from duality.cli.main import main
from duality.data.packing import Sequences
from duality.diffusion.processes import Uniform
from duality.evaluation.judge import Judge
from duality.evaluation.text_metrics import Quality
from duality.runs import corpora
from duality.runs import model as run_model
from duality.runs.comparison import (
    Plan,
    Row,
    cells,
    compare,
    headers,
    markdown,
    notes,
    steps_of,
    tokens_seen,
    training_seconds,
)
from duality.runs.metrics import read_metrics
from duality.samplers.ancestral import Ancestral
from duality.samplers.autoregressive import Autoregressive

SMALL = ["data.tokenizer=bytes", "data.length=32", "backbone=nano", "training.batch_size=4", "training.log_every=1"]
NAMES = ["ar-laptop", "mdlm-laptop", "sedd-uniform-laptop"]


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
        assert row["seconds"] > 0
        assert math.isfinite(row["perplexity_stderr"])
        assert row["quality"] is None
        model = run_model.load(tmp_path / "out" / row["recipe"], quiet)
        assert row["parameters"] == sum(value.numel() for value in model.denoiser.parameters())
        assert row["recipe"] in printed
        validated = [line for line in read_metrics(tmp_path / "out" / row["recipe"]) if "validation_nats" in line]
        assert [line["step"] for line in validated] == [6]  # none between the steps that are timed
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


def wordless() -> Judge:
    """A judge to whom all four tokens of its vocabulary are the same."""

    def logits(ids: torch.Tensor, _real: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, 4)

    return Judge("wordless", lambda text: [len(text) % 4] * 3, logits, 64, 0, "cpu")


def test_a_judge_adds_columns(english: Path, tmp_path: Path) -> None:
    recipes = [small_recipe(english, "training.steps=3", name=name) for name in NAMES]
    plan = Plan(tmp_path / "out", 1, 4, wordless(), num_samples=3, sampling_steps=5)
    rows, remarks = compare(recipes, plan, quiet, lambda each: training_display(each.training.steps))
    assert [row.sampling_steps for row in rows] == [32, 5, 5]
    for row in rows:
        assert row.quality is not None
        assert row.quality.gen_ppl == pytest.approx(4.0)
        assert row.quality.num_samples == 3
        saved = (tmp_path / "out" / row.recipe / "samples" / "compared.jsonl").read_text().splitlines()
        assert len(saved) == 3
    table = markdown(rows, remarks)
    assert "| Gen PPL |" in table
    assert "Gen PPL under wordless, on 3 samples of each model. Real text" in table
    assert ": 4 ± 0, entropy" in table
    assert len(headers(rows)) == len(cells(rows[0]))


def test_what_else_differs_is_said(english: Path) -> None:
    first, second = small_recipe(english, name="mdlm-laptop"), small_recipe(english, name="duo-laptop")
    assert notes([first, second]) == []
    third = small_recipe(english, "training.learning_rate=0.5", name="ar-laptop")
    assert notes([first, third]) == ["ar-laptop: training.learning_rate: 0.006 -> 0.5"]


def test_steps_where_there_is_a_choice() -> None:
    assert steps_of(Ancestral(Uniform(3)), 8, 64) == 8
    assert steps_of(Ancestral(Uniform(3)), None, 64) == 32
    assert steps_of(Autoregressive(3), 8, 64) == 64


def test_the_clock_counts_every_sitting(tmp_path: Path) -> None:
    clocks = ((1, 0, 5.0), (2, 0, 9.0), (3, 2, 10.0), (4, 2, 12.5))
    rows = [{"step": step, "since": since, "seconds": seconds} for step, since, seconds in clocks]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert training_seconds(tmp_path) == pytest.approx(9 + 12.5)


def test_tokens_seen_are_real_tokens(tmp_path: Path) -> None:
    """Documents of 3 letters and their separator, in rows of 32: 4 tokens a row, whatever the row's length."""
    path = tmp_path / "short.jsonl"
    path.write_text("".join(json.dumps({"text": "abc"}) + "\n" for _ in range(40)), encoding="utf-8")
    chosen = small_recipe(
        path, "data.packing=document", "data.split=document", "training.steps=13", "training.batch_size=8"
    )
    corpus = corpora.prepared(chosen, quiet)
    assert tokens_seen(Sequences(corpus.train, 32, "document"), chosen) == 13 * 8 * 4


def test_bad_comparisons_are_refused(english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["compare", "mdlm-laptop", "mdlm-laptop", "--data", str(english), "--out", str(tmp_path)], "stands twice"),
        (["compare", "mdlm-labtop"], "did you mean mdlm-laptop"),
        (["compare", "mdlm-laptop", "--samples", "0"], "at least 1"),
        (["compare", "mdlm-laptop", "--limit", "0"], "at least 1"),
        (["compare", "mdlm-laptop", "--sample-steps", "0"], "at least 1"),
        (["compare", "d3pm-absorb-laptop", "--set", "method.num_steps=0"], "at least 1 step"),
        (["compare", "d3pm-absorb-laptop", "--set", "method.times.eps=0.001"], "must end at the mask"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_rows_read_as_what_they_are() -> None:
    quality = Quality("j", 100.4, 3.2, 4.567, 8, (95.0, 106.0), (4.5, 4.6))
    row = Row("r", "s", 1_400_000, 2_000_000, 90, "exact", 99.95, 1.26, 2.0, quality, 64)
    assert cells(row) == [
        "r", "1.40 M", "2.00 M", "1.5 min", "= 100.0 ± 1.3", "2.000", "exact", "100 ± 3", "4.57", "8", "64",
    ]  # fmt: skip
