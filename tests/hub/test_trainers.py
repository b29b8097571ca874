"""Checkpoints of the released trainers, with all that they keep: each is imported, evaluated, sampled and exported."""

from __future__ import annotations

import filecmp
import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from support.released import (
    HF_CONFIG,
    NUM_TOKENS,
    SEDD_CONFIG,
    changed,
    numbers_folder,
    prefixed,
    reference_tensors,
    write_folder,
)
from support.trainers import fewer_states, mdlm_config, paper_config, sdtt_config, write_trained

from duality.cli.main import main
from duality.diffusion.schedules import LogLinear
from duality.hub.exchange import ImportRequest, export_run, import_released
from duality.hub.released.files import read_released
from duality.hub.released.weights import weight_names
from duality.methods.ar import AR
from duality.methods.d3pm import D3PM
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.sedd import SEDD
from duality.methods.udlm import UDLM
from duality.models.folder import read_recipe
from duality.models.model import load
from duality.networks.dit import DiTNetwork

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


TEXT8 = {
    "duo": (paper_config("duo"), Duo()),
    "mdlm": (paper_config("mdlm", time_conditioning=False), MDLM()),
    "d3pm": (paper_config("d3pm", T=1000), D3PM()),
    "ar": (paper_config("ar", time_conditioning=False, causal_attention=True), AR(begin=2)),
}


@pytest.mark.parametrize("name", TEXT8)
def test_text8_has_35_ids_and_the_mask_token_is_one_of_them(name: str, golden: Path, tmp_path: Path) -> None:
    """The tokenizer's class is in the file, and is not run; neither is one that a model of the hub brought along."""
    config, method = TEXT8[name]
    tensors = fewer_states(reference_tensors(golden, f"dit_{'causal_' * (name == 'ar')}tiny.npz"), 35)
    source = write_trained(tmp_path / "model.ckpt", tensors, config, "dataloader.Text8Tokenizer")
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 4)
    run = tmp_path / ("ar" if name == "ar" else "run")
    follow(source, run, text)
    assert read_recipe(run).method == method
    model = load(run, device="cpu")
    assert model.tokenizer.encode("ab Z.").tolist() == [8, 9, 34, 33, 7]
    assert model.tokenizer.decode([4, 8, 34, 9]) == "[MASK]a b"
    place = "transformers_modules.owner.name.0a1b.tokenization.OwnTokenizer"
    other = write_trained(tmp_path / "other.ckpt", tensors, config, place)
    assert main(["import", str(other), "--out", str(tmp_path / "other")]) == 0


@pytest.mark.parametrize("name", ["mdlm", "ar"])
def test_a_mask_token_inside_the_vocabulary_changes_no_probability(name: str, golden: Path, tmp_path: Path) -> None:
    """The released law, its mask token the piece 4, is that of the imported model, whose mask token is the last state.

    The layout of the folder is that of the hub's models with BERT's vocabulary.
    """
    causal = name == "ar"
    tensors = fewer_states(reference_tensors(golden, f"dit_{'causal_' * causal}tiny.npz"), 35)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(30))]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({each: n for n, each in enumerate(pieces)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(pieces[:5])
    made.save(str(tmp_path / "pieces.json"))
    fields = {"causal": True} if causal else {"causal": None, "var_min": None, "time_conditioning": False}
    config = changed(HF_CONFIG, vocab_size=35, model_type="duo" if causal else "mdlm", **fields)
    source, given = write_folder(tmp_path / "hf", prefixed(tensors), config), str(tmp_path / "pieces.json")
    model = load(import_released(source, tmp_path / "run", ImportRequest(tokenizer=given)), device="cpu")
    assert (model.tokenizer.vocab_size, model.mask_id) == (35, None if causal else 35)
    x = torch.from_numpy(np.load(golden / "dit_tiny.npz")["x"]) % 30 + 5
    if causal:
        assert model.recipe.method == AR(begin=2)
        theirs, ours = torch.cat([torch.full_like(x[:, :1], 2), x[:, :-1]], 1), x
    else:
        masked = torch.arange(12) % 2 == 0
        theirs, ours = torch.where(masked, 4, x), torch.where(masked, 35, x)
    network = DiTNetwork(model.recipe.backbone, 35, causal)  # type: ignore[arg-type]
    network.load_state_dict({own: tensors[name] for name, own in weight_names(2, causal).items()})
    with torch.no_grad():
        logits = network(theirs, torch.zeros(3)).double()
        logits[..., 4] -= 1e6
        expected = logits.log_softmax(-1)
        found = model.denoiser.log_probs(ours, torch.full((3,), 0.5)).double()  # type: ignore[operator]
    rows = torch.ones_like(x, dtype=torch.bool) if causal else theirs == 4
    torch.testing.assert_close(found[..., :35][rows].exp(), expected[rows].exp(), rtol=0, atol=1e-6)
    assert not any("[MASK]" in each.full_text for each in model.sample(20, steps=None if causal else 3))
    export_run(tmp_path / "run", tmp_path / "again", "duo-hf")
    for file in ("model.safetensors", "config.json"):
        assert filecmp.cmp(source / file, tmp_path / "again" / file, shallow=False) or file == "config.json"
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == config


def test_a_sedd_whose_mask_token_is_a_piece_is_refused(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = fewer_states(reference_tensors(golden), 35)
    source = write_trained(tmp_path / "model.ckpt", tensors, paper_config("sedd"))
    assert main(["import", str(source), "--out", str(tmp_path / "run")]) == 2
    assert "a SEDD whose mask token is the piece 4" in capsys.readouterr().err


def test_folders_of_sdtt(golden: Path, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder whose config.json is the configuration of a training; also with the names of MDLM's own folder."""
    tensors, numbers = reference_tensors(golden), str(numbers_folder(tmp_path / "numbers", NUM_TOKENS - 1))
    for number, prefix in enumerate(("backbone.", "backbone.backbone.")):
        run = tmp_path / f"run-{number}"
        source = write_folder(tmp_path / f"hf-{number}", prefixed(tensors, prefix), sdtt_config())
        assert main(["import", str(source), "--out", str(run), "--tokenizer", numbers]) == 0
        assert main(["eval", str(run), "--data", str(text), "--draws", "1"]) == 0
        assert main(["sample", str(run), "--num", "1", "--steps", "2"]) == 0
        assert read_recipe(run).method == MDLM()
        again = export_run(run, tmp_path / f"again-{number}", "duo-hf")
        assert filecmp.cmp(source / "model.safetensors", again / "model.safetensors", shallow=False)
        assert json.loads((again / "config.json").read_text()) == sdtt_config()
    latent = {f"latent_projection.{n}.weight": torch.ones(2, 2) for n in range(40)}  # what Di4C adds
    other = write_folder(tmp_path / "other", prefixed({**tensors, **latent}), sdtt_config())
    changed_fields = {f"field_{number}": number for number in range(60)}
    odd = write_folder(tmp_path / "odd", prefixed(tensors), {**HF_CONFIG, **changed_fields})
    for folder, words in ((other, " and 34 more"), (odd, " and 54 more")):
        capsys.readouterr()
        assert main(["import", str(folder), "--out", str(tmp_path / "no"), "--tokenizer", numbers]) == 2
        line = capsys.readouterr().err
        assert words in line
        assert len(line) < 700 + len(str(folder))


def test_a_checkpoint_without_an_average_goes_without_one(
    golden: Path, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_trained(tmp_path / "model.ckpt", reference_tensors(golden), paper_config("duo"), average=False)
    follow(source, tmp_path / "run", text, "--tokenizer", str(numbers_folder(tmp_path / "numbers", NUM_TOKENS)))
    assert "raw weights alone, without an average" in capsys.readouterr().err
    assert "ema" not in torch.load(tmp_path / "run.ckpt", weights_only=True)


@pytest.mark.parametrize("noise", ["absorbing", "uniform"])
def test_checkpoints_of_the_sedd_code(noise: str, golden: Path, tmp_path: Path, text: Path) -> None:
    """A .pth has no configuration: the noise is said, and with a geometric one how far it goes."""
    tensors = reference_tensors(golden)
    shadow = [value + 1e-4 for name, value in tensors.items() if "inv_freq" not in name]
    ema = {"decay": 0.9999, "num_updates": 70, "shadow_params": shadow}
    source = tmp_path / "checkpoint.pth"
    torch.save({"optimizer": {"state": {}}, "model": OrderedDict(tensors), "ema": ema, "step": 70}, source)
    numbers = numbers_folder(tmp_path / "numbers", NUM_TOKENS - (noise == "absorbing"))
    said = ["--method", "sedd", "--length", "12", "--tokenizer", str(numbers), "--noise", noise]
    follow(source, tmp_path / "run", text, *said, "--set", "method.training_schedule.eps=2e-9")
    assert read_recipe(tmp_path / "run").method == SEDD(noise, LogLinear(2e-9))
    with pytest.raises(ValueError, match="noise is uniform, and duo has its own"):
        import_released(source, tmp_path / "no", ImportRequest("duo", noise="uniform", length=12))


def test_a_folder_of_sedd_with_a_geometric_schedule(golden: Path, tmp_path: Path) -> None:
    noise = {"type": "geometric", "sigma_min": 1e-4, "sigma_max": 20}
    config = {**SEDD_CONFIG, "noise": noise, "tokens": 37, "graph": {"type": "uniform"}}
    config["model"] = {**SEDD_CONFIG["model"], "scale_by_sigma": False}
    source = write_folder(tmp_path / "hf", reference_tensors(golden), config)
    run = import_released(source, tmp_path / "run", ImportRequest(tokenizer=str(numbers_folder(tmp_path / "numbers"))))
    assert read_recipe(run).method == SEDD("uniform", LogLinear(math.exp(-20)))
    with pytest.raises(ValueError, match="noise is absorbing, and"):
        import_released(source, tmp_path / "no", ImportRequest(noise="absorbing"))


def test_weights_in_several_files(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An index names the file of every tensor; one that names other files, or other tensors, is refused."""
    tensors = prefixed(reference_tensors(golden))
    whole = write_folder(tmp_path / "whole", tensors)
    parted, names = write_folder(tmp_path / "parted", tensors), list(tensors)
    (parted / "model.safetensors").unlink()
    places: dict[str, str] = {}
    for number, part in enumerate((names[:9], names[9:]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name].contiguous() for name in part}, parted / file)
        places |= dict.fromkeys(part, file)
    index = parted / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    request = ImportRequest(tokenizer=str(numbers_folder(tmp_path / "numbers")))
    runs = [import_released(each, tmp_path / f"run-{each.name}", request) for each in (whole, parted)]
    (one,), (other,) = (list(run.glob("checkpoints/step-*/ema.safetensors")) for run in runs)
    assert filecmp.cmp(one, other, shallow=False)
    wrong = (
        ({**places, names[0]: "../whole/model.safetensors"}, "which is no file of this folder"),
        ({**places, "more": places[names[0]]}, "differ (1 names, such as 'more')"),
        ({**places, names[0]: 3}, "holds no weight_map"),
    )
    for found, words in wrong:
        index.write_text(json.dumps({"weight_map": found}))
        assert main(["import", str(parted), "--out", str(tmp_path / "no")]) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "no").exists()


def test_an_exported_checkpoint_has_what_their_trainer_resumes_from(golden: Path, tmp_path: Path) -> None:
    """The counters of Lightning's loops, total and current, of which it takes its step; no moments."""
    source = write_trained(tmp_path / "model.ckpt", reference_tensors(golden), paper_config("duo"))
    request = ImportRequest(tokenizer=str(numbers_folder(tmp_path / "numbers")))
    export_run(import_released(source, tmp_path / "run", request), tmp_path / "again.ckpt", "duo-ckpt")
    found = torch.load(tmp_path / "again.ckpt", weights_only=True)
    loop = found["loops"]["fit_loop"]
    optimizer = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    batches = loop["epoch_loop.batch_progress"]
    counters = (*optimizer.values(), batches, loop["epoch_loop.scheduler_progress"], loop["epoch_progress"])
    for counter in counters:
        assert {"total", "current"} <= counter.keys()
        assert {"ready", "completed"} <= counter["total"].keys() == counter["current"].keys()
    assert optimizer["step"]["total"]["completed"] == batches["total"]["ready"] == 1000
    assert batches["is_last_batch"] is False
    assert batches["current"]["completed"] == loop["epoch_progress"]["current"]["completed"] == 0
    assert (found["optimizer_states"], found["lr_schedulers"]) == ([], [])


def test_the_state_dict_alone_is_enough(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the error for a file with other objects recommends works as it is written."""
    tensors, alone = reference_tensors(golden), tmp_path / "alone.ckpt"
    source = write_trained(tmp_path / "model.ckpt", tensors, paper_config("duo"), "own.code.Words")
    out = ["--tokenizer", str(numbers_folder(tmp_path / "numbers", NUM_TOKENS)), "--out", str(tmp_path / "run")]
    assert main(["import", str(source), *out]) == 2
    assert "(own.code.Words)" in (line := capsys.readouterr().err)
    assert "save its state_dict alone as another .ckpt, and give that with --method and --length" in line
    torch.save(OrderedDict(prefixed(tensors)), alone)
    assert main(["import", str(alone), *out]) == 2
    assert "give --method" in capsys.readouterr().err
    assert main(["import", str(alone), *out, "--method", "duo", "--length", "12"]) == 0
    found = load(tmp_path / "run", device="cpu").denoiser
    assert torch.equal(found.get_parameter("backbone.embedding"), tensors["vocab_embed.embedding"])


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
