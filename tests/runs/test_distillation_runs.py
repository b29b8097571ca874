"""Runs of distillation: made from a trained run, interrupted, saved by round, refused."""

from __future__ import annotations

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
from support.runs import quiet, small_recipe
from torch import nn

from duality.cli.main import main
from duality.models import folder
from duality.models import model as run_model
from duality.protocols import Tail
from duality.recipes import catalogue
from duality.recipes.derive import derive_distillation
from duality.recipes.recipe import Generation, Recipe
from duality.training import checkpoint
from duality.training.distillation import DCD, SDTT
from duality.training.loop import StepRecord, TrainState
from duality.training.metrics import read_metrics


def base_run(english: Path, folder: Path, *assignments: str, name: str = "duo-laptop") -> Recipe:
    recipe = small_recipe(english, "training.steps=6", "training.decay=0", *assignments, name=name)
    session.train(recipe, folder, report=quiet)
    return recipe


def small_rounds(kind: type[Any], **options: Any) -> Any:
    return kind(**{"rounds": 3, "round_steps": 4, "delta": 1 / 16, **options})


def distillation_of(base: Recipe, kind: Any, **training: Any) -> Recipe:
    recipe = derive_distillation(base, kind, base.training.steps)
    return replace(recipe, training=replace(recipe.training, **{"save_every": 3, "log_every": 1, **training}))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    saved = load_newest(folder / "checkpoints", quiet)
    assert saved is not None
    return {f"{group}.{name}": value for group, values in saved.groups.items() for name, value in values.items()}


def stop_at(step: int) -> Callable[[StepRecord], None]:
    def watch(record: StepRecord) -> None:
        if record.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


MODELS = {
    "duo-laptop": DCD,
    "udlm-laptop": DCD,
    "d3pm-uniform-laptop": DCD,
    "mdlm-laptop": SDTT,
    "d3pm-absorb-laptop": SDTT,
    "diffusion-bert-laptop": SDTT,
}
CASES = [*((name, kind, {}) for name, kind in MODELS.items()), ("duo-laptop", DCD, {"compare": "posterior"})]


@pytest.mark.parametrize(("name", "kind", "options"), CASES, ids=str)
def test_every_belief_about_discrete_noise_can_be_distilled(
    english: Path, tmp_path: Path, name: str, kind: type[Any], options: dict[str, Any]
) -> None:
    base = base_run(english, tmp_path / "base", name=name)
    recipe = distillation_of(base, small_rounds(kind, **options))
    assert session.distill(tmp_path / "base", recipe, tmp_path / "few", report=quiet) == session.Outcome(12, 0)
    phases = [row["phase"] for row in read_metrics(tmp_path / "few") if "phase" in row]
    assert phases == ["round 1"] * 4 + ["round 2"] * 4 + ["round 3"] * 4
    # the measure is the method's own bound, not the loss of distillation
    measured = [row for row in read_metrics(tmp_path / "few") if "validation_nats" in row]
    assert [row["step"] for row in measured] == [4, 8, 12]
    assert all(row["validation_nats"] > 1 and row["validation_kind"] == "bound" for row in measured)
    model = run_model.load(tmp_path / "few", quiet)
    assert model.recipe == recipe
    assert model.generate(num=2, length=8, steps=2).shape == (2, 8)


@pytest.mark.parametrize("teacher", ["weights", "ema"])
@pytest.mark.parametrize(("name", "kind"), [("duo-laptop", DCD), ("mdlm-laptop", SDTT)])
def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(
    english: Path, tmp_path: Path, name: str, kind: type[Any], teacher: str
) -> None:
    """Stopped within a round, at its border and just after, with dropout; the teachers are equal too."""
    base = base_run(english, tmp_path / "base", "backbone.dropout=0.1", name=name)
    recipe = distillation_of(base, small_rounds(kind, teacher=teacher))
    session.distill(tmp_path / "base", recipe, tmp_path / "whole", report=quiet)
    for stop in (2, 4, 5, 11):
        options: dict[str, Any] = {"resume": stop > 2, "report": quiet, "watch": stop_at(stop)}
        assert session.distill(tmp_path / "base", recipe, tmp_path / "parts", **options).step == stop
    assert session.train(recipe, tmp_path / "parts", resume=True, report=quiet) == session.Outcome(12, 0)
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert any(key.startswith("teacher.") for key in whole)
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    for number in range(4):
        one, other = (run_model.load(tmp_path / folder, quiet, round=number) for folder in ("whole", "parts"))
        assert all(map(torch.equal, one.denoiser.parameters(), other.denoiser.parameters()))


@pytest.mark.parametrize(("teacher", "group"), [("weights", "model"), ("ema", "ema")])
def test_the_teacher_changes_once_per_round_to_the_configured_copy(
    english: Path, tmp_path: Path, teacher: str, group: str
) -> None:
    base = base_run(english, tmp_path / "base")
    recipe = distillation_of(base, small_rounds(DCD, teacher=teacher), keep=20, save_every=1, micro_batch=3)
    session.distill(tmp_path / "base", recipe, tmp_path / "few", report=quiet)
    saved = {step: checkpoint.load(tmp_path / f"few/checkpoints/step-{step:08d}") for step in range(13)}

    def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(left[name], right[name]) for name in left)

    trained = load_newest(tmp_path / "base" / "checkpoints", quiet)
    assert trained is not None
    assert equal(saved[0].groups["model"], trained.groups["model"])
    assert equal(saved[0].groups["ema"], trained.groups["ema"])
    assert not equal(trained.groups["model"], trained.groups["ema"])
    for step in range(1, 13):
        begun = (step - 1) // 4 * 4
        assert equal(saved[step].groups["teacher"], saved[begun].groups[group]), step
        assert saved[step].state["round"] == begun // 4 + 1
        assert saved[step].state["delta"] == 2 ** (begun // 4) / 16


def test_the_configured_ema_decay_is_used(english: Path, tmp_path: Path) -> None:
    """The base was averaged with 0.99; its distillation is not, from the first step on."""
    base = base_run(english, tmp_path / "base")
    assert base.training.ema == 0.99
    for decay in (0.0, 1.0):
        recipe = distillation_of(base, small_rounds(DCD), ema=decay, save_every=12)
        session.distill(tmp_path / "base", recipe, tmp_path / f"few-{decay}", report=quiet)
    now = tensors(tmp_path / "few-0.0")
    names = [key.removeprefix("ema.") for key in now if key.startswith("ema.")]
    assert all(torch.equal(now[f"ema.{name}"], now[f"model.{name}"]) for name in names)
    # a decay of 1 is never used as it is: at step n of the distillation it is at most (1 + n) / (10 + n)
    state = TrainState.fresh(nn.Linear(2, 2, bias=False), recipe.training)
    before = state.ema["weight"].clone()
    with torch.no_grad():
        next(state.model.parameters()).add_(1.0)
    state.step = 1
    state.average(1.0)
    assert torch.allclose(state.ema["weight"], before + (1 - 2 / 11))


def test_rounds_are_saved_and_can_be_loaded(english: Path, tmp_path: Path) -> None:
    base = base_run(english, tmp_path / "base")
    session.distill(tmp_path / "base", distillation_of(base, small_rounds(DCD), keep=1), tmp_path / "few", report=quiet)
    assert checkpoint.steps_saved(tmp_path / "few" / "rounds") == [0, 4, 8, 12]
    before, after = run_model.load(tmp_path / "base", quiet), run_model.load(tmp_path / "few", quiet)
    first, last = (run_model.load(tmp_path / "few", quiet, round=number) for number in (0, 3))
    assert all(map(torch.equal, before.denoiser.parameters(), first.denoiser.parameters()))
    assert all(map(torch.equal, after.denoiser.parameters(), last.denoiser.parameters()))
    with pytest.raises(ValueError, match="has no round 4: there are 0, 1, 2, 3"):
        run_model.load(tmp_path / "few", quiet, round=4)
    with pytest.raises(ValueError, match="is no distillation"):
        run_model.load(tmp_path / "base", quiet, round=1)
    (tmp_path / "few" / "rounds" / "step-00000004" / "ema.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match="is damaged"):
        run_model.load(tmp_path / "few", quiet, round=1)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("ar-laptop", DCD, "AR cannot be distilled with dcd.*no discrete noise whose steps could be saved"),
        ("ar-laptop", SDTT, "AR cannot be distilled with sdtt.*no discrete noise whose steps could be saved"),
        ("sedd-uniform-laptop", DCD, "does not draw from a belief at a noise level"),
        ("sedd-absorb-laptop", SDTT, "does not draw from a belief at a noise level"),
        ("mdlm-laptop", DCD, "for MDLM use --method sdtt"),
        ("duo-laptop", SDTT, "for Duo use --method dcd"),
        ("plaid-laptop", DCD, "no discrete noise whose steps could be saved"),
        ("bert-mouth-laptop", SDTT, r"sampler \(Gibbs\) does not draw from a belief at a noise level"),
    ],
)
def test_a_method_that_cannot_be_distilled_is_refused_and_leaves_nothing(
    english: Path, tmp_path: Path, name: str, kind: type[Any], message: str
) -> None:
    base = base_run(english, tmp_path / "base", "training.steps=1", name=name)
    before = tensors(tmp_path / "base")
    with pytest.raises(ValueError, match=message):
        session.distill(tmp_path / "base", distillation_of(base, small_rounds(kind)), tmp_path / "few", report=quiet)
    assert not (tmp_path / "few").exists()
    after = tensors(tmp_path / "base")
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_dry_run_refuses_what_the_run_would_refuse(
    english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base_run(english, tmp_path / "base", "training.steps=1", name="udlm-laptop")
    assert main(["distill", str(tmp_path / "base"), "--method", "sdtt", "--dry-run"]) == 2
    assert "for UDLM use --method dcd" in capsys.readouterr().err


def test_distilling_nothing_is_refused(english: Path, tmp_path: Path) -> None:
    recipe = distillation_of(small_recipe(english), small_rounds(DCD))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        session.distill(tmp_path / "empty", recipe, tmp_path / "few", report=quiet)
    with pytest.raises(ValueError, match="begins from a trained run"):
        session.train(recipe, tmp_path / "new", report=quiet)
    with pytest.raises(ValueError, match="set the rounds instead"):
        replace(recipe, training=replace(recipe.training, steps=5))
    base_run(english, tmp_path / "base")
    with pytest.raises(ValueError, match="already holds a run"):
        session.distill(tmp_path / "empty", recipe, tmp_path / "base", report=quiet)


def test_another_base_is_refused(english: Path, tmp_path: Path) -> None:
    """The base is known by its weights: it may move, and another run in its place is not it."""
    base = base_run(english, tmp_path / "base", "training.keep=9", "training.save_every=2")
    base_run(english, tmp_path / "other", "training.seed=7")
    base_run(english, tmp_path / "shorter", "training.steps=5")
    recipe = distillation_of(base, small_rounds(DCD))
    run = tmp_path / "few"
    session.distill(tmp_path / "base", recipe, run, report=quiet, watch=stop_at(6))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=rf"is a distillation of step 6 of {tmp_path / 'base'}.*are others"):
        session.distill(tmp_path / "other", recipe, run, resume=True, report=quiet)
    with pytest.raises(ValueError, match=r"has no checkpoint of that step.*duality train duo-laptop-dcd --out"):
        session.distill(tmp_path / "shorter", recipe, run, resume=True, report=quiet)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    (tmp_path / "base").rename(tmp_path / "moved")
    resume: dict[str, Any] = {"resume": True, "report": quiet}
    assert session.distill(tmp_path / "moved", recipe, run, **resume, watch=stop_at(8)).step == 8
    (tmp_path / "other").rename(tmp_path / "base")
    with pytest.raises(ValueError, match="are others"):
        session.distill(tmp_path / "base", recipe, run, resume=True, report=quiet)
    # the same run, trained on: the step is not kept any more
    for path in (tmp_path / "base" / "checkpoints").glob("step-*"):
        shutil.rmtree(path)
    messages: list[str] = []
    session.distill(tmp_path / "base", recipe, run, resume=True, report=messages.append, watch=stop_at(9))
    assert any("not kept any more" in message for message in messages)
    (run / "base.json").unlink()
    outcome = session.distill(tmp_path / "shorter", recipe, run, resume=True, report=messages.append)
    assert outcome == session.Outcome(12, 0)
    assert any("has no base.json" in message for message in messages)


def test_a_distillation_that_was_not_completely_begun_is_no_start_for_a_training(english: Path, tmp_path: Path) -> None:
    """A crash before the recipe is written leaves the weights of the base: they are not the first weights of a run."""
    base = base_run(english, tmp_path / "base")
    recipe = distillation_of(base, small_rounds(DCD))
    session.distill(tmp_path / "base", recipe, tmp_path / "few", report=quiet, watch=stop_at(1))
    (tmp_path / "few" / "recipe.json").unlink()
    for path in (tmp_path / "few").iterdir():
        if path.name not in ("base.json", "checkpoints", "rounds"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match="holds the beginning of a distillation"):
        session.train(small_recipe(english), tmp_path / "few", resume=True, report=quiet)
    assert session.distill(tmp_path / "base", recipe, tmp_path / "few", report=quiet) == session.Outcome(12, 0)


def test_a_checkpoint_of_another_round_is_refused(english: Path, tmp_path: Path) -> None:
    base = base_run(english, tmp_path / "base")
    recipe = distillation_of(base, small_rounds(DCD))
    session.distill(tmp_path / "base", recipe, tmp_path / "few", report=quiet, watch=stop_at(6))
    changed = replace(recipe, distillation=small_rounds(DCD, delta=1 / 32))
    folder.write_recipe(changed, tmp_path / "few")
    with pytest.raises(ValueError, match="its recipe says"):
        session.train(changed, tmp_path / "few", resume=True, report=quiet)


def test_the_distillation_of_the_papers_base_has_the_papers_settings() -> None:
    """5 rounds of 10 000 steps, batch 128, learning rate 6e-5 after 500 steps, average 0.999."""
    from duality.recipes.catalogue import recipe

    made = derive_distillation(recipe("duo-owt"), DCD(), 1_000_000).training
    assert (made.steps, made.batch_size, made.warmup, made.decay) == (50_000, 128, 500, 0.0)
    assert made.learning_rate == pytest.approx(6e-5)
    assert made.ema == pytest.approx(0.999)


@pytest.mark.parametrize(("batch", "expected"), [(8, 8), (64, 64), (128, 64), (256, 64), (512, 128), (2048, 512)])
def test_the_batch_of_a_distillation_is_a_quarter_but_not_a_small_one(batch: int, expected: int) -> None:
    made = derive_distillation(small_recipe(Path("unused"), f"training.batch_size={batch}"), DCD(), 20).training
    assert made.batch_size == expected


@pytest.mark.parametrize(
    ("kind", "steps", "tail", "temperature"),
    [
        (DCD(rounds=4, delta=1 / 64, compare="posterior"), 8, "posterior", 1.0),
        (DCD(compare="output"), 32, "posterior", 0.9),
        (SDTT(rounds=4, delta=1 / 128), 8, "ancestral", 0.9),
    ],
)
def test_a_distilled_model_is_sampled_with_the_steps_of_its_last_round(
    kind: Any, steps: int, tail: Tail, temperature: float
) -> None:
    base = replace(catalogue.recipe("duo-laptop"), generation=Generation(steps=64, tail="greedy", temperature=0.9))
    made = derive_distillation(base, kind, 10)
    assert made.generation == Generation(steps=steps, tail=tail, temperature=temperature)
    assert catalogue.from_json(catalogue.to_json(made)) == made
