"""The frontiers of a sweep: which curves are compared, how the table reads, the files, several folders together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.judges import table_judge
from support.runs import quiet
from support.sweep_rows import row

from duality.evaluation.figures import plot_frontiers
from duality.evaluation.frontiers import _default_measures, curves_of, difference, frontiers
from duality.evaluation.samples import Case, Row, Samples, Score, read_rows
from duality.evaluation.scorers import FunctionScorer
from duality.evaluation.sweep import Advance, RunSampler, Sweep

CASE = Case(label="a", run=Path("a"), steps=4, num=8, length=12)


class Letters(RunSampler):
    """Samples of more different letters at a higher temperature; run b uses other letters."""

    def weights(self, case: Case) -> str:
        return "step 1"

    def sample(self, case: Case, advance: Advance) -> Samples:
        source = torch.Generator().manual_seed(case.steps)
        first = 97 if case.run.name == "a" else 99
        tokens = torch.randint(first, first + round(10 * case.temperature), (case.num, 12), generator=source)
        return Samples(tokens, [bytes(row).decode() for row in tokens.tolist()], 0.0, 1.0, "step 1")


def shares(texts: Sequence[str]) -> dict[str, list[float]]:
    return {
        "vowels": [sum(map(text.count, "aeiou")) / len(text) for text in texts],
        "novelty": [len(set(text)) / len(text) for text in texts],
    }


def measured(out: Path, *runs: str, judged: bool = True, steps: Sequence[int] = (4, 8)) -> list[Row]:
    cases = [
        replace(CASE, label=run, run=Path(run), temperature=t, steps=each)
        for run in runs
        for each in steps
        for t in (0.5, 0.8, 1.0)
    ]
    real = Samples(torch.randint(97, 110, (5, 12)), ["abcdefghijkl"] * 5, 0.0, 0.0, "")
    scorers = [] if judged else [FunctionScorer("shares", shares)]
    return Sweep(out, Letters("cpu", quiet), quiet, table_judge() if judged else None, real, scorers).measure(cases)


def test_the_measures_that_are_drawn_if_none_are_named() -> None:
    scores = {name: Score(0.5, None, None, 1, "s") for name in ("validity", "novelty")}
    assert _default_measures([row("a", 4, 10.0, 5.0)]) == ("gen_ppl", "entropy")
    assert _default_measures([row("a", 4, 10.0, 5.0, scores=scores)]) == ("validity", "novelty")
    assert _default_measures([row("a", 4, None, 5.0, scores={"x": scores["validity"]})]) == ("x", "entropy")
    with pytest.raises(ValueError, match="no measure of quality: name a judge"):
        _default_measures([row("a", 4, None, 5.0)])


def test_a_curve_is_compared_with_the_first_model_of_the_same_settings(tmp_path: Path) -> None:
    rows = measured(tmp_path, "a", "b")
    found = frontiers(dict.fromkeys(rows, tmp_path))
    assert [(each.label, each.against) for each in found.comparisons] == [
        ("a, 8 steps", "a, 4 steps"),
        ("b, 4 steps", "a, 4 steps"),
        ("b, 8 steps", "a, 8 steps"),
    ]
    curves = {
        curve.label: curve for curve in curves_of({r: tmp_path for r in rows if not r.real}, "gen_ppl", "entropy")
    }
    for each in found.comparisons:
        assert each.difference == difference([curves[each.label]], [curves[each.against]])
    assert (found.quality, found.diversity) == ("gen_ppl", "entropy")


def test_the_table_shows_perplexities_and_their_ratio(tmp_path: Path) -> None:
    found = frontiers(dict.fromkeys(measured(tmp_path, "a", "b", steps=(4,)), tmp_path))
    (each,) = found.comparisons
    assert each.difference is not None
    cells = found._cells(each)
    assert cells[3] == f"{math.exp(each.difference.first):.1f}"
    assert cells[5].startswith(f"{math.exp(each.difference.value):.3f} [{math.exp(each.difference.low):.3f}, ")
    assert cells[6] in ("higher", "lower", "undecided")
    assert "| model | against | entropy | gen_ppl | of the other | ratio | it is |" in found.markdown()


def test_curves_without_a_common_diversity_are_said_to_have_none(tmp_path: Path) -> None:
    found = frontiers(
        dict.fromkeys(measured(tmp_path, "a", "b", judged=False, steps=(4,)), tmp_path), "vowels", "entropy"
    )
    nothing = replace(found, comparisons=(replace(found.comparisons[0], difference=None),))
    assert "| b, 4 steps | a, 4 steps | none in common | – | – | – | – |" in nothing.markdown()
    assert "| of the other | difference | it is |" in nothing.markdown()
    assert found.to_json()["comparisons"]


def test_one_curve_has_no_comparison(tmp_path: Path) -> None:
    found = frontiers(dict.fromkeys(measured(tmp_path, "a", steps=(4,)), tmp_path))
    assert found.comparisons == ()
    assert found.markdown().startswith("Frontiers: gen_ppl against entropy over temperature.")


def test_folders_are_compared_with_each_other(tmp_path: Path) -> None:
    """Two folders give what one folder with both models gives."""
    both = measured(tmp_path / "both", "a", "b", steps=(4,))
    for run in ("a", "b"):
        measured(tmp_path / run, run, steps=(4,))
    places = read_rows([tmp_path / "a", tmp_path / "b" / "quality.json"])
    assert set(places.values()) == {tmp_path / "a", tmp_path / "b"}
    apart = frontiers(places)
    assert apart.comparisons == frontiers(dict.fromkeys(both, tmp_path / "both")).comparisons
    plot_frontiers(apart, tmp_path / "together.png")
    assert (tmp_path / "together.png").is_file()
