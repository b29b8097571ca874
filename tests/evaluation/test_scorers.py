"""Scorers: found by name or place, refused with a reason, summarised with an interval, kept by version."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from support.scorers import Known

from duality.evaluation import SCORERS
from duality.evaluation.samples import Score
from duality.evaluation.scorers import (
    FunctionScorer,
    Numbers,
    Scorer,
    ScorerContext,
    find_scorer,
    key_of,
    score_texts,
    summary,
)

TEXTS = ["one", "three", ""]


def lengths(texts: Sequence[str]) -> dict[str, list[float]]:
    """A user's function."""
    return {"length": [float(len(text)) for text in texts]}


def function(result: object, columns: tuple[str, ...] = ()) -> Scorer:
    made: Callable[[Sequence[str]], Numbers] = lambda texts: result  # type: ignore[assignment, return-value] # noqa: E731
    return FunctionScorer("mine", made, columns=columns)


def test_names_are_known_without_torch() -> None:
    script = "import sys; from duality.evaluation import SCORERS; list(SCORERS); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert list(SCORERS) == ["molecules", "tales", "prose"]


def test_a_function_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are kept under the checksum of its file: another file has another key."""
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    Path("first_scores.py").write_text("def words(texts): return {'words': [len(text.split()) for text in texts]}\n")
    scorer = find_scorer("first_scores:words")
    assert sys.path == before
    assert score_texts(scorer, ["a b", "c"]) == {"words": [2.0, 1.0]}
    assert (scorer.name, scorer.columns) == ("first_scores:words", ())
    assert len(scorer.version) == 12
    Path("second_scores.py").write_text("def words(texts): return {'words': [0 for text in texts]}\n")
    assert find_scorer("second_scores:words").version != scorer.version
    assert key_of(scorer) == f"first_scores:words ({scorer.version})"


def test_a_scorer_that_needs_the_training_texts() -> None:
    read: list[int] = []

    def training() -> list[str]:
        read.append(1)
        return ["one"]

    context = ScorerContext(training, "id")
    scorer = find_scorer("support.scorers:Known", context)
    assert read == []
    assert score_texts(scorer, TEXTS) == {"known": [1.0, 0.0, None]}
    assert read == [1]
    assert key_of(scorer) == "known (1)"
    assert find_scorer(f"{__name__}:INSTANCE") is INSTANCE


INSTANCE = Known(ScorerContext(tuple))


def test_entry_points_and_registered_names(monkeypatch: pytest.MonkeyPatch) -> None:
    plugged = EntryPoint("plugged", f"{__name__}:lengths", "duality.scorers")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [plugged] if group == "duality.scorers" else [])
    assert score_texts(find_scorer("plugged"), TEXTS) == {"length": [3.0, 5.0, 0.0]}
    with SCORERS.extended("lengths", lengths):
        assert score_texts(find_scorer("lengths"), TEXTS) == {"length": [3.0, 5.0, 0.0]}
    with pytest.raises(ValueError, match=r"no scorer 'pluged': did you mean plugged\?"):
        find_scorer("pluged")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("molecule", r"no scorer 'molecule': did you mean molecules\?"),
        ("no_such_module:f", "no scorer 'no_such_module:f'"),
        (f"{__name__}:absent", "no scorer .* has no attribute 'absent'"),
        (f"{__name__}:TEXTS", "is a list: name a function of a sequence of texts"),
    ],
)
def test_what_is_no_scorer_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_scorer(spec)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1, 2, 3], "gave a list: it must return a dictionary"),
        ({}, "gave no column"),
        ({"a": [1, 2]}, "'a' of the scorer 'mine' has 2 numbers for 3 texts"),
        ({"a": 1.0}, "'a' of the scorer 'mine' is a float: it must be a list"),
        ({"a": [1, "2", 3]}, "has '2' for text 1: it must be a number"),
        ({"a": [1, math.inf, 3]}, "is infinite for text 1"),
        ({"entropy": [1, 2, 3]}, "has a column 'entropy'"),
        ({3: [1, 2, 3]}, "has a column 3"),
    ],
)
def test_wrong_results_are_refused(result: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score_texts(function(result), TEXTS)


def test_the_columns_must_be_those_that_are_promised() -> None:
    with pytest.raises(ValueError, match="gave the columns a, and says that it has b"):
        score_texts(function({"a": [1, 2, 3]}, ("b",)), TEXTS)


def test_numbers_of_every_kind_are_taken() -> None:
    """NaN and None are the absence of a number; what is kept is JSON."""
    kinds = [1, 1.5, True, np.float32(0.5), np.int64(3), np.bool_(True), torch.tensor(2.0), math.nan, None]
    found = score_texts(function({"a": kinds}), ["x"] * len(kinds))
    assert found == {"a": [1.0, 1.5, 1.0, 0.5, 3.0, 1.0, 2.0, None, None]}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert score_texts(function({"a": np.array([0.5, np.nan])}), ["x", "y"]) == {"a": [0.5, None]}


def test_the_summary_is_a_mean_over_the_numbers_that_exist() -> None:
    """Against the binomial law: 60 of 200 texts have a number, half of these a 1."""
    column = [None] * 140 + [0.0, 1.0] * 30
    found = summary("key", column)
    assert (found.value, found.count, found.scorer) == (0.5, 60, "key")
    assert found.low is not None
    assert found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * math.sqrt(0.25 / 60), rel=0.1)
    assert summary("key", [None, None]) == Score(None, None, None, 0, "key")
    assert summary("key", [None, 0.25]) == Score(0.25, None, None, 1, "key")
    assert summary("key", [None] * 50 + [0.0, 1.0]).value == 0.5  # some resamples have no number at all
