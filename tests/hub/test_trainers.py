"""Checkpoints of the released trainers, with all that they keep: each is imported, evaluated, sampled and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.released import NUM_TOKENS, numbers_folder, reference_tensors
from support.trainers import mdlm_config, paper_config, write_trained

from duality.cli.main import main
from duality.diffusion.schedules import LogLinear
from duality.hub.released.files import read_released
from duality.methods.ar import AR
from duality.methods.d3pm import D3PM
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.sedd import SEDD
from duality.methods.udlm import UDLM
from duality.models.folder import read_recipe

# What the trainers write, and the method that it is; 0 for eps is what the paper's code says until February 2026.
TRAINED: dict[str, tuple[dict[str, Any], Any]] = {
    "duo of 2025": (paper_config("duo"), Duo()),
    "duo of 2026": (paper_config("duo", 1e-3), Duo()),
    "duo_base": (paper_config("duo_base"), Duo()),
    "distillation": (paper_config("distillation"), Duo()),
    "mdlm": (paper_config("mdlm", time_conditioning=False), MDLM()),
    "sedd": (paper_config("sedd"), SEDD()),
    "d3pm": (paper_config("d3pm", T=1000), D3PM()),
    "ar": (paper_config("ar", time_conditioning=False, causal_attention=True), AR(begin=36)),
    "mdlm, the code of its paper": (mdlm_config(), MDLM()),
    "ar, the code of the MDLM paper": (mdlm_config("ar"), AR(begin=36)),
    "sedd, the code of the MDLM paper": (mdlm_config("sedd", time_conditioning=True), SEDD()),
    "udlm": (mdlm_config("d3pm", diffusion="uniform", time_conditioning=True), UDLM()),
}


def follow(source: Path, run: Path, text: Path, *flags: str) -> None:
    """Import, evaluate, sample and export a file; what is exported has its tensors."""
    assert main(["import", str(source), "--out", str(run), *flags]) == 0
    assert main(["eval", str(run), "--data", str(text), "--draws", "1"]) == 0
    assert main(["sample", str(run), "--num", "1", *([] if "ar" in run.name else ["--steps", "2"])]) == 0
    again = run.with_suffix(".ckpt")
    assert main(["export", str(run), "--out", str(again), "--layout", "duo-ckpt"]) == 0
    before, after = read_released(source), read_released(again)
    assert list(before.tensors) == list(after.tensors)
    assert all(torch.equal(value, after.tensors[name]) for name, value in before.tensors.items())
    assert all(torch.equal(*pair) for pair in zip(before.average or (), after.average or (), strict=True))
    assert torch.load(again, weights_only=True)["global_step"] == before.step


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.txt"
    path.write_text("\n".join(" ".join(str((7 * row + 3 * place) % 35) for place in range(50)) for row in range(4)))
    return path


@pytest.mark.parametrize("name", TRAINED)
def test_what_a_trainer_writes_is_imported(name: str, golden: Path, tmp_path: Path, text: Path) -> None:
    config, method = TRAINED[name]
    causal = isinstance(method, AR)
    tensors = reference_tensors(golden, "dit_causal_tiny.npz" if causal else "dit_tiny.npz")
    uniform = isinstance(method, (Duo, UDLM))
    tokenizer = numbers_folder(tmp_path / "numbers", NUM_TOKENS if uniform or causal else NUM_TOKENS - 1)
    source = write_trained(tmp_path / "model.ckpt", tensors, config)
    run = tmp_path / ("ar" if causal else "run")
    follow(source, run, text, "--tokenizer", str(tokenizer))
    assert read_recipe(run).method == method


def test_any_field_can_be_set_but_those_of_the_weights(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_trained(tmp_path / "model.ckpt", reference_tensors(golden), paper_config("duo", 0.01))
    given = ["import", str(source), "--tokenizer", str(numbers_folder(tmp_path / "numbers", NUM_TOKENS)), "--out"]
    fields = ["method.training_schedule.eps=0.002", "generation.steps=8", "data.length=24"]
    assert main([*given, str(tmp_path / "run"), "--set", *fields]) == 0
    recipe = read_recipe(tmp_path / "run")
    assert recipe.method == Duo(training_schedule=LogLinear(0.002))
    assert (recipe.generation.steps, recipe.data.length) == (8, 24)
    for field, words in (
        ("backbone.width=128", "the network would have other weights than the file"),
        ("method=MDLM", "the network would have other weights than the file"),
        ("data.tokenizer=bytes", "name the tokenizer by --tokenizer"),
        ("method.eps=1", "no field 'method.eps'"),
    ):
        capsys.readouterr()
        assert main([*given, str(tmp_path / "other"), "--set", field]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
        assert not (tmp_path / "other").exists()
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["name"] == "imported-duo"
