"""Train longer: the rule of rates and phases, bit for bit, also if the longer training is interrupted or killed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import session
from support.checkpoints import load_newest
from support.runs import ROOT, quiet, small_recipe

import duality
from duality.cli.main import main
from duality.methods import METHODS
from duality.models import folder
from duality.recipes import derive
from duality.recipes.recipe import Recipe
from duality.runs import resume
from duality.runs.requests import DistillRequest, RoundChanges
from duality.runs.train import plan_distillation
from duality.training.loop import StepRecord
from duality.training.metrics import read_metrics

MOST = "method.curriculum=0.75"


def tensors(run: Path) -> dict[str, torch.Tensor]:
    saved = load_newest(run / "checkpoints", quiet)
    assert saved is not None
    return {f"{group}.{name}": value for group, values in saved.groups.items() for name, value in values.items()}


def assert_identical(left: Path, right: Path) -> None:
    ours, theirs = tensors(left), tensors(right)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def stop_at(step: int) -> Callable[[StepRecord], None]:
    def watch(record: StepRecord) -> None:
        if record.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def steps(recipe: Recipe, number: int) -> Recipe:
    return replace(recipe, training=replace(recipe.training, steps=number))


def go_on(recipe: Recipe, run: Path, **options: Any) -> session.Outcome:
    return session.train(recipe, run, resume=True, report=quiet, may_be_longer=True, **options)


def killed_at(run: str, step: int) -> None:
    """A process that dies by kill -9 in its longer training."""
    torch.set_num_threads(1)

    def watch(record: StepRecord) -> None:
        if record.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    go_on(steps(small_recipe(ROOT / "LICENSE", MOST), 40), Path(run), watch=watch)


def test_stopped_in_the_first_phase_it_equals_a_run_that_was_planned_so(english: Path, tmp_path: Path) -> None:
    """At step 3 neither cooling down nor the end of the curriculum had come, in a plan of 20 steps and in one of 40."""
    recipe = small_recipe(english)
    session.train(recipe, tmp_path / "run", report=quiet, watch=stop_at(3))
    assert go_on(steps(recipe, 40), tmp_path / "run") == session.Outcome(40, 0)
    session.train(steps(recipe, 40), tmp_path / "whole", report=quiet)
    assert_identical(tmp_path / "run", tmp_path / "whole")
    assert folder.read_recipe(tmp_path / "run") == steps(recipe, 40)
    changed = [row for row in read_metrics(tmp_path / "run") if "changed" in row]
    assert changed == [{"step": 3, "changed": ["training.steps: 20 -> 40"]}]


def test_a_finished_run_goes_on_by_the_rule_and_interrupted_it_is_the_same(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english, MOST)
    wanted = steps(recipe, 40)
    session.train(recipe, tmp_path / "finished", report=quiet)
    runs = {name: tmp_path / name for name in ("whole", "parts", "killed", "by hand")}
    for run in runs.values():
        shutil.copytree(tmp_path / "finished", run)
    assert go_on(wanted, runs["whole"]) == session.Outcome(40, 0)

    # the rule: rates of 40 steps, and the curriculum, which ended at step 15 of 20, does not begin again
    rows = {row["step"]: row for row in read_metrics(runs["whole"]) if "loss" in row}
    assert [rows[step]["learning_rate"] for step in range(21, 41)] == [wanted.training.rate(n) for n in range(20, 40)]
    assert [rows[step]["phase"] for step in range(1, 41)] == ["curriculum"] * 15 + ["bound"] * 25
    held = folder.read_recipe(runs["whole"])
    assert (held.training.steps, held.training.phase_steps) == (40, 20)
    assert [row["changed"] for row in read_metrics(runs["whole"]) if "changed" in row] == [
        ["training.steps: 20 -> 40", "training.phase_steps: None -> 20"]
    ]
    # the same by hand: a recipe of 40 steps whose curriculum has the same number of them
    by_hand = steps(small_recipe(english, "method.curriculum=0.375"), 40)
    folder.write_recipe(by_hand, runs["by hand"])
    session.train(by_hand, runs["by hand"], resume=True, report=quiet)
    assert_identical(runs["whole"], runs["by hand"])

    for stop in (21, 25, 33):
        assert go_on(wanted, runs["parts"], watch=stop_at(stop)) == session.Outcome(stop, signal.SIGINT)
    assert session.train(held, runs["parts"], resume=True, report=quiet) == session.Outcome(40, 0)
    assert_identical(runs["whole"], runs["parts"])

    process = multiprocessing.get_context("forkserver").Process(target=killed_at, args=(str(runs["killed"]), 28))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert go_on(wanted, runs["killed"]) == session.Outcome(40, 0)
    assert_identical(runs["whole"], runs["killed"])


def test_fewer_steps_than_taken_are_refused_and_fewer_than_planned_are_not(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english)
    session.train(recipe, tmp_path, report=quiet, watch=stop_at(12))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"training.steps is 11, and the run has taken 12 steps"):
        go_on(steps(recipe, 11), tmp_path)
    with pytest.raises(
        ValueError, match=r"training.steps: 20 -> 40"
    ):  # as a comparison trains: it never goes on longer
        session.train(steps(recipe, 40), tmp_path, resume=True, report=quiet)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert go_on(steps(recipe, 14), tmp_path) == session.Outcome(14, 0)


def test_a_longer_training_that_cannot_begin_changes_nothing(english: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(english.read_text())
    recipe = small_recipe(corpus, "training.steps=5")
    session.train(recipe, tmp_path / "run", report=quiet)
    corpus.write_text(english.read_text().replace("License", "Licence"))
    with pytest.raises(ValueError, match="has changed since the run began"):
        go_on(steps(recipe, 9), tmp_path / "run")
    assert folder.read_recipe(tmp_path / "run") == recipe


def test_the_command_and_the_function(english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = small_recipe(english, MOST, "training.steps=8"), str(tmp_path / "run")
    duality.train(recipe, out=out)
    command = ["train", "duo-laptop", "--out", out, "--resume"]
    assert main([*command, "--steps", "12"]) == 0
    assert "training.steps changes from 8 to 12: from step 9 on" in capsys.readouterr().err
    assert main([*command, "--steps", "11"]) == 2
    assert main(command) == 0
    assert "step 12" in capsys.readouterr().out
    for _ in range(2):  # the same call continues, though the run has noted how its phases are divided
        assert duality.train(recipe, out=out, steps=16, resume=True).step == 16
    assert folder.read_recipe(tmp_path / "run").training.phase_steps == 8


def test_a_distillation_gets_more_rounds(english: Path, tmp_path: Path) -> None:
    """The learning rate is constant after its first step, so that the result equals rounds that were planned."""
    base = small_recipe(english, "training.steps=6")
    session.train(base, tmp_path / "base", report=quiet)

    def plan(out: str, rounds: int, resume: bool = False) -> Any:
        changes = RoundChanges(rounds=rounds, round_steps=4, delta=1 / 16)
        settings = ("training.log_every=1", "training.save_every=3")
        return plan_distillation(
            DistillRequest(tmp_path / "base", changes=changes, out=tmp_path / out, set=settings, resume=resume)
        )

    plan("whole", 4).run(device="cpu")
    assert plan("few", 2).run(device="cpu") == session.Outcome(8, 0)
    assert plan("few", 4, resume=True).run(device="cpu", watch=stop_at(11)).step == 11
    assert plan("few", 4, resume=True).run(device="cpu") == session.Outcome(16, 0)
    assert_identical(tmp_path / "whole", tmp_path / "few")
    held = folder.read_recipe(tmp_path / "few")
    assert held == folder.read_recipe(tmp_path / "whole")
    assert held.generation.steps == 2
    assert folder.list_rounds(tmp_path / "few", held) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"\(3 rounds\), and the run has taken 16 steps"):
        plan("few", 3, resume=True).run(device="cpu")


@pytest.mark.parametrize("name", list(METHODS))
def test_the_ends_of_phases_are_known_without_the_vocabulary(name: str) -> None:
    recipe = replace(small_recipe(Path("unused")), method=METHODS[name]())
    assert all(resume._lengthen(recipe, recipe, step) == recipe for step in (0, 19))
    assert derive.method_phases(recipe, 2)[-1].until == 20
