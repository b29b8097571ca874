"""The study of the curriculum: paired differences, its table, and a tiny study from beginning to end."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from experiments.curriculum import Result, Trial, arguments, differences, main, mean_and_interval, settings, table


def result(variant: str, seed: int, nats: float) -> Result:
    return Result(Trial(variant, "polynomial", seed), nats, 0.01, ((10, nats),), ((10, nats),))


def test_differences_are_taken_seed_by_seed() -> None:
    """The seeds differ much more than the variants: only the pairs show the difference."""
    found = [result("plain", seed, 5.0 + seed) for seed in (1, 2, 3)]
    found += [result("window", seed, 4.9 + seed + 0.01 * (seed - 2)) for seed in (1, 2, 3)]
    gaps = differences(found, "window", "plain", "polynomial")
    assert gaps == pytest.approx([-0.11, -0.1, -0.09])
    mean, half = mean_and_interval(gaps)
    assert mean == pytest.approx(-0.1)
    assert half == pytest.approx(4.303 * 0.01 / math.sqrt(3), abs=1e-4)
    assert "| polynomial | window | 3 | 6.9000 ± 2.5092 | -0.1000 ± 0.0248 | – |" in table(found, ["plain", "window"])


def test_the_variants_are_those_of_the_paper() -> None:
    options = arguments(["--steps", "60"])
    chosen = settings(Trial("window", "log-linear", 3), options)
    assert {"method.curriculum=0.5", "method.tau=0", "method.alpha_max=0.95", "training.seed=3"} <= set(chosen)
    assert "method.training_schedule=LogLinear" in chosen


def test_a_tiny_study_is_not_done_twice(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("It was a bright cold day in April, and the clocks were striking. " * 60)
    line = f"--out {tmp_path / 'out'} --data {text} --tokenizer bytes --steps 6 --seeds 1 --limit 2 --times polynomial"
    first = main([*line.split(), "--variants", "plain,window"])
    assert [each.trial.variant for each in first] == ["plain", "window"]
    assert all(math.isfinite(each.nats) and len(each.curve) >= 6 for each in first)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"results.json", "table.md", "curriculum.png"} <= written
    before = (tmp_path / "out" / "plain-polynomial-1" / "metrics.jsonl").stat().st_mtime_ns
    assert main([*line.split(), "--variants", "plain,window"]) == first
    assert (tmp_path / "out" / "plain-polynomial-1" / "metrics.jsonl").stat().st_mtime_ns == before
