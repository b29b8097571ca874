"""Sweeps over runs: every requested combination, and what is refused before anything is sampled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import session
from support.judges import table_judge
from support.runs import quiet, small_recipe

from duality.cli.main import main
from duality.evaluation.frontiers import frontiers
from duality.evaluation.requests import SAMPLER_NAMES, SweepRequest, _has_eta
from duality.evaluation.samples import read_rows
from duality.evaluation.scorers import FunctionScorer
from duality.evaluation.sweep import _cases_of, measure_runs
from duality.files.progress import Pace, Show
from duality.samplers import SAMPLERS


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, english: Path) -> list[Path]:
    """A Duo run and an autoregressive one, of a few steps."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("duo-laptop", "ar-laptop"):
        session.train(small_recipe(english, "training.steps=2", name=name), folder / name, report=quiet)
    return [folder / "duo-laptop", folder / "ar-laptop"]


def test_cases_are_all_combinations(runs: list[Path]) -> None:
    settings = SweepRequest(
        steps=(2, None), sampler=("own", "psi-cap"), tail=("ancestral", "greedy"), num=3, eta=0.2, seed=4
    )
    cases = _cases_of(runs[:1], settings)
    assert len(cases) == len({case.key for case in cases}) == 8
    assert {(case.sampler, case.eta) for case in cases} == {("own", None), ("psi-cap", 0.2)}
    assert {case.steps for case in cases} == {2, 32}
    swept = _cases_of(runs[:1], SweepRequest(steps=(2,), temperature=(0.5, 0.8, 1.0)))
    assert [case.temperature for case in swept] == [0.5, 0.8, 1.0]
    assert {(case.label, case.num, case.length, case.seed, case.round) for case in cases} == {
        ("duo-laptop", 3, 32, 4, None)
    }
    (own,) = _cases_of(runs[1:], SweepRequest(steps=(None,), length=8))
    assert (own.steps, own.length) == (8, 8)  # one step per token


def test_rounds_that_are_measured() -> None:
    for rounds, saved, expected in (
        ("last", [0, 1, 2], [None]),
        ("all", [0, 1, 2], [0, 1, 2]),
        ((1, 2), [0, 1, 2], [1, 2]),
        ("all", [], [None]),  # no distillation
    ):
        assert list(SweepRequest(steps=(2,), rounds=rounds).rounds_of(saved)) == expected


def test_samplers_are_those_that_are_registered() -> None:
    assert ("own", *SAMPLERS) == SAMPLER_NAMES
    assert [name for name in SAMPLER_NAMES if _has_eta(name)] == [name for name in SAMPLERS if name.startswith("psi-")]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="no sampler 'onw': did you mean own"):
        SweepRequest(steps=(2,), sampler=("onw",))
    with pytest.raises(ValueError, match=r"eta is 0\.5, and no sampler of own, ancestral has one"):
        SweepRequest(steps=(2,), sampler=("own", "ancestral"), eta=0.5)
    for bad in ((), (0.0,), (1.0, -1.0)):
        with pytest.raises(ValueError, match="give at least one, each above 0"):
            SweepRequest(steps=(2,), temperature=bad)
    with pytest.raises(ValueError, match="nothing to measure: name run folders"):
        _cases_of([], SweepRequest(steps=(2,)))


def test_the_command_measures_what_the_library_does(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`duality quality` with a judge, and ``measure_runs`` with the same settings: the same rows but for the time."""
    monkeypatch.setattr("duality.evaluation.sweep.find_judge", lambda name, device, report: table_judge())
    options = ["--steps", "2,3", "--tail", "greedy", "--num", "3", "--judge", "any", "--device", "cpu", "--json"]
    assert main(["quality", str(runs[0]), *options, "--out", str(tmp_path / "command")]) == 0
    printed = json.loads(capsys.readouterr().out)
    settings = SweepRequest(steps=(2, 3), tail=("greedy",), num=3)
    rows = measure_runs(runs[:1], settings, judge=table_judge(), out=tmp_path / "library", device="cpu")
    assert [row.real for row in rows] == [False, False, True]
    for row, line in zip(rows, printed, strict=True):
        assert {**row.to_json(), "seconds_per_sample": None} == {**line, "seconds_per_sample": None}
        assert row.judge == "table"
    for name in ("quality.json", "quality.md", "quality.png", "scores.json"):
        assert (tmp_path / "library" / name).is_file()
    assert not (tmp_path / "library" / "rounds.png").exists()


def test_the_frontiers_are_written(runs: list[Path], tmp_path: Path) -> None:
    """With more than one temperature, from a judge or a scorer: what ``duality plot`` makes of the same files."""
    request = SweepRequest(steps=(2,), num=3, temperature=(0.5, 1.0))
    scorer = FunctionScorer("shares", lambda texts: {"vowels": [float(len(set(text))) for text in texts]})
    for quality, judge, scorers in (("gen_ppl", table_judge(), []), ("vowels", None, [scorer])):
        out = tmp_path / quality
        measure_runs(runs[:1], request, judge=judge, scorers=scorers, out=out, device="cpu")
        found = frontiers(read_rows([out]))
        assert (out / "frontiers.png").read_bytes().startswith(b"\x89PNG")
        assert (out / "frontiers.md").read_text() == found.markdown()
        written = json.loads((out / "frontiers.json").read_text())
        assert written == json.loads(json.dumps(found.to_json()))
        assert written["quality"] == quality


@dataclass
class Display:
    """A reporter that shows work in progress: how many steps were announced, and how many were done."""

    total: float = 0
    done: float = 0

    def __call__(self, message: str) -> None:
        pass

    @contextmanager
    def showing(self) -> Iterator[Show]:
        def show(pace: Pace, note: str) -> None:
            assert not note
            assert pace.tokens == 0
            if pace.label == "sampling":
                self.total, self.done = pace.total, pace.done

        yield show


def test_total_steps_are_those_of_all_batches(runs: list[Path], tmp_path: Path) -> None:
    """Every step of every batch advances the progress, which ends at its total."""
    display = Display()
    request = SweepRequest(steps=(4, 10), num=3, length=8)
    measure_runs(runs[:1], request, out=tmp_path, device="cpu", batch_size=2, report=display)
    assert display.done == display.total == (4 + 10) * 2


def test_nothing_is_written_for_what_is_refused(runs: list[Path], tmp_path: Path) -> None:
    """A round that does not exist, a tail, a sampler of another kind of model: all before the judge is loaded."""
    for run, settings, message in (
        (runs[0], SweepRequest(steps=(2,), tail=("lazy",)), "tail 'lazy'"),
        (runs[1], SweepRequest(steps=(2,), sampler=("ancestral",)), "no discrete process"),
        (runs[0], SweepRequest(steps=(2,), grid="loop"), "the grid loop with the sampler own"),
        (runs[0], SweepRequest(steps=(0,)), "steps is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            measure_runs([run], settings, judge="./no-such-judge", out=tmp_path / "out")
    with pytest.raises(ValueError, match="no judge at"):
        measure_runs(runs, SweepRequest(steps=(None,)), judge="./no-such-judge", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
