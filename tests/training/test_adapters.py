"""LoRA: the network begins as it was, its own weights never change, and the run loads as an ordinary model."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from support import session
from support.checkpoints import load_newest
from support.runs import quiet, small_recipe
from torch import nn

import duality
from duality.models import model as run_model
from duality.models import plan as scaling
from duality.models.size import Outline, describe
from duality.protocols import Vocabulary
from duality.recipes.catalogue import recipe as recipe_named
from duality.runs.requests import TrainRequest
from duality.runs.train import plan_training
from duality.training.adapters import choose_trained, merge_adapters
from duality.training.loop import StepRecord
from duality.training.metrics import read_metrics

SHORT = ["training.save_every=2", "training.log_every=1", "training.eval_every=0"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "base"
    session.train(
        small_recipe(english, "training.steps=8", "training.learning_rate=0.003", "generation.steps=2"),
        folder,
        report=quiet,
    )
    return folder


def is_adapter(name: str) -> bool:
    """Whether a tensor of a checkpoint is of an adapter."""
    return name.endswith((".lora_A.default.weight", ".lora_B.default.weight"))


def groups(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    saved = load_newest(folder / "checkpoints", quiet)
    assert saved is not None
    return saved.groups


def stop_at(step: int) -> Any:
    def watch(record: StepRecord) -> None:
        if record.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


# --- what needs no library


def test_shapes_and_counts_are_known_before_there_is_a_network() -> None:
    chosen = recipe_named("duo-laptop", ("training.lora=4", "training.lora_layers=qkv,mlp", "training.freeze=blocks.0"))
    shapes = Outline(chosen, Vocabulary(300)).shapes(adapters=True)
    adapters = {name: shape for name, shape in shapes.items() if is_adapter(name)}
    assert len(adapters) == 3 * 3 * 2  # three blocks, three matrices, two sides
    assert adapters["backbone.blocks.3.mlp.2.lora_A.default.weight"] == (4, 512)
    assert adapters["backbone.blocks.3.mlp.2.lora_B.default.weight"] == (128, 4)
    assert "backbone.blocks.0.qkv.weight" in shapes
    assert "backbone.blocks.1.mlp.0.base_layer.bias" in shapes
    count = sum(torch.Size(shape).numel() for shape in adapters.values())
    assert count == scaling.Sizes.of(chosen, CPU).trained
    assert f"{count:,} more in adapters of rank 4, which alone are trained" in describe(chosen)
    assert shapes.keys() - adapters.keys() != Outline(chosen, Vocabulary(300)).shapes().keys()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("training.lora=64",), "a rank is at most 32, the smaller side"),
        (("training.lora=2", "training.lora_layers=qvk"), "the layers are qkv, out, mlp.0, mlp.2, or all"),
        (("training.lora=2", "training.freeze=blocks"), "leaves no matrix to adapt"),
        (("training.lora=2", "training.freeze=heads"), "'heads', which is no part of the network"),
    ],
)
def test_what_cannot_be_adapted_is_refused(english: Path, changes: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        describe(small_recipe(english, *changes))


def test_settings_that_have_no_meaning_are_refused(base: Path, english: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"set their rank, such as training.lora=8"):
        small_recipe(english, "training.lora_alpha=3")
    with pytest.raises(ValueError, match="it must be positive, or none"):
        small_recipe(english, "training.lora=2", "training.lora_alpha=0")
    with pytest.raises(ValueError, match=r"training.lora is 2 in a distillation: its teacher is a copy"):
        duality.distill(base, set=["training.lora=2"], out=tmp_path / "few")


def test_an_adapter_begins_as_that_of_peft() -> None:
    """The library makes the same first values and computes the same."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    chosen = recipe_named("duo-laptop", ("training.lora=4", "training.freeze=blocks.0"))
    ours, theirs = (run_model.network(chosen, Vocabulary(60)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    choose_trained(ours, chosen.training)
    adapted = [name.removesuffix(".lora_A.default.weight") for name, _ in ours.named_parameters() if "lora_A" in name]
    settings = peft.LoraConfig(r=4, lora_alpha=8, target_modules=adapted, lora_dropout=0.0, bias="none")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chosen.training.seed)
        peft.inject_adapter_in_model(settings, theirs)
    weights = [dict(model.named_parameters()) for model in (ours, theirs)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert all(value.requires_grad == weights[1][name].requires_grad for name, value in weights[0].items())
    for model in weights:
        for name, value in model.items():
            if "lora_B" in name:
                nn.init.normal_(value.data, generator=torch.Generator().manual_seed(len(name)))
    z, alpha = torch.arange(40).view(2, 20), torch.full((2,), 0.5, dtype=torch.float64)
    with torch.no_grad():
        beliefs = [model.log_probs(z, alpha) for model in (ours, theirs)]  # type: ignore[operator]
    assert torch.equal(*beliefs)


# --- what trains adapters


@pytest.fixture(scope="module")
def tuned(base: Path, english: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finetuning of adapters on the text of the base."""
    folder = tmp_path_factory.mktemp("adapters") / "tuned"
    plan_training(TrainRequest(start=base, data=english, out=folder, steps=4, set=[*SHORT, "training.lora=4"])).run(
        device="cpu"
    )
    return folder


@pytest.mark.slow
def test_only_adapters_are_trained_and_the_first_step_sees_the_old_model(
    base: Path, english: Path, tuned: Path
) -> None:
    before, after = groups(base)["ema"], groups(tuned)
    assert {name for name in after["model"] if not is_adapter(name)} == {
        name for name in after["ema"] if not is_adapter(name)
    }
    for group in ("model", "ema"):
        for name, value in after[group].items():
            assert is_adapter(name) or torch.equal(value, before[name.replace(".base_layer", "")]), name
    assert all(is_adapter(name.rpartition(".")[0]) for name in after["optimizer"])
    moved = [name for name, value in after["model"].items() if name.endswith("lora_B.default.weight") and value.any()]
    assert len(moved) == 8
    full = plan_training(TrainRequest(start=base, data=english, out=tuned.with_name("full"), steps=4, set=SHORT))
    full.run(device="cpu")
    rows = [read_metrics(each)[:2] for each in (tuned, full.folder)]
    assert rows[0][0]["validation_nats"] == rows[1][0]["validation_nats"]
    assert rows[0][1]["loss"] == pytest.approx(rows[1][1]["loss"], rel=1e-7)
    assert read_recipe_rate(tuned) == 5 * read_recipe_rate(full.folder)


def read_recipe_rate(folder: Path) -> float:
    return duality.load(folder).recipe.training.learning_rate


@pytest.mark.slow
def test_the_run_loads_as_an_ordinary_model(tuned: Path, tmp_path: Path) -> None:
    """Its beliefs are those of the network with adapters; it is sampled, measured, distilled."""
    loaded = duality.load(tuned, weights="model")
    adapted = run_model.network(loaded.recipe, Vocabulary(257))
    choose_trained(adapted, loaded.recipe.training)
    own = dict(adapted.named_parameters())
    assert {name: tuple(value.shape) for name, value in own.items()} == Outline(loaded.recipe, Vocabulary(257)).shapes(
        adapters=True
    )
    with torch.no_grad():
        for name, value in groups(tuned)["model"].items():
            own[name].copy_(value)
        z, alpha = torch.arange(40).view(2, 20), torch.full((2,), 0.5, dtype=torch.float64)
        beliefs = [each.log_probs(z, alpha) for each in (adapted, loaded.denoiser)]  # type: ignore[operator]
    assert torch.allclose(beliefs[0], beliefs[1], atol=1e-5)
    assert duality.load(tuned).sample(1, steps=2)[0].tokens
    few = duality.distill(tuned, rounds=1, round_steps=2, out=tmp_path / "few", device="cpu")
    assert few.recipe.training.lora == 0
    start = duality.load(tmp_path / "few", round=0).denoiser.state_dict()
    assert all(torch.equal(start[name], value) for name, value in duality.load(tuned).denoiser.state_dict().items())


@pytest.mark.slow
def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(
    base: Path, english: Path, tuned: Path, tmp_path: Path
) -> None:
    for stop in (1, 3, 4):
        plan = plan_training(
            TrainRequest(
                start=base, data=english, out=tmp_path / "run", steps=4, set=[*SHORT, "training.lora=4"], resume=True
            )
        )
        assert plan.run(device="cpu", watch=stop_at(stop)).step == stop
    whole, parts = groups(tuned), groups(tmp_path / "run")
    for group, tensors in whole.items():
        assert tensors.keys() == parts[group].keys()
        assert all(torch.equal(value, parts[group][name]) for name, value in tensors.items())


def test_merging_adds_the_scaled_product() -> None:
    chosen = recipe_named("duo-laptop", ("training.lora=2", "training.lora_alpha=6")).training
    w, a, b = torch.randn(3, 4), torch.randn(2, 4), torch.randn(3, 2)
    tensors = {"x.base_layer.weight": w, "x.lora_A.default.weight": a, "x.lora_B.default.weight": b, "y": a}
    found = merge_adapters(tensors, chosen)
    assert found.keys() == {"x.weight", "y"}
    assert torch.allclose(found["x.weight"], w + 3.0 * b @ a)
