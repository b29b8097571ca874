"""Released models as runs: the reference numbers after import, the released laws, and export as the inverse."""

from __future__ import annotations

import filecmp
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import session
from support.released import (
    HF_CONFIG,
    LIGHTNING_CONFIG,
    NUM_TOKENS,
    SEDD_CONFIG,
    averaged,
    changed,
    numbers_folder,
    prefixed,
    reference_tensors,
    write_checkpoint,
    write_folder,
)
from support.runs import small_recipe
from torch import Tensor

from duality.cli.main import main
from duality.hub.exchange import ImportRequest, export_run, import_released
from duality.hub.released.weights import weight_names
from duality.methods.ar import AR
from duality.methods.mdlm import MDLM
from duality.methods.sedd import SEDD
from duality.models.folder import read_recipe
from duality.models.model import Model, load
from duality.recipes import catalogue
from duality.runs.listing import overviews
from duality.tokenizers.library import _byte_pairs, load_tokenizer, with_extra_tokens
from duality.tokenizers.specs import BPE, KeptTokenizer
from duality.tokenizers.tokenizer import ByteTokenizer
from duality.training import checkpoint

Import = Callable[..., Path]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Import a released file into a new run, with a tokenizer of numbers."""

    def make(source: Path | str, num_tokens: int = NUM_TOKENS, **wanted: Any) -> Path:
        tokenizer = numbers_folder(tmp_path / f"numbers-{num_tokens}", num_tokens)
        number = sum(path.name.startswith("run-") for path in tmp_path.iterdir())
        return import_released(source, tmp_path / f"run-{number}", ImportRequest(tokenizer=str(tokenizer), **wanted))

    return make


def logits_of(model: Model, data: Any, level: Tensor) -> Tensor:
    backbone = model.denoiser.get_submodule("backbone")
    with torch.no_grad():
        found: Tensor = backbone(torch.from_numpy(data["x"]), level)
    return found


@pytest.mark.parametrize("layout", ["folder", "checkpoint"])
@pytest.mark.parametrize("file", ["dit_tiny.npz", "dit_causal_tiny.npz"])
def test_logits_are_the_released_ones(file: str, layout: str, golden: Path, tmp_path: Path, imported: Import) -> None:
    tensors, causal = reference_tensors(golden, file), "causal" in file
    if layout == "folder":
        config = changed(HF_CONFIG, vocab_size=38, causal=True) if causal else HF_CONFIG
        source = write_folder(tmp_path / "hf", prefixed(tensors), config)
    else:
        algo = {"name": "ar" if causal else "duo_base", "causal_attention": causal}
        ema = {"shadow_params": [value for name, value in tensors.items() if "inv_freq" not in name]}
        hyper = {"config": changed(LIGHTNING_CONFIG, algo=algo)}
        source = write_checkpoint(tmp_path / "model.ckpt", tensors, ema=ema, hyper_parameters=hyper)
    model, data = load(imported(source), device="cpu"), np.load(golden / file)
    level = torch.zeros(3) if causal else torch.from_numpy(data["sigma"])
    torch.testing.assert_close(logits_of(model, data, level), torch.from_numpy(data["logits"]), rtol=0, atol=1e-5)
    assert model.length == 12
    if causal:  # the released model begins with the end-of-text; its extra state was never trained
        assert model.recipe.method == AR(begin=36)
        assert model.denoiser.get_parameter("backbone.embedding").shape[0] == 38
        x, after = torch.from_numpy(data["x"]).clamp_max(36), torch.full((3, 1), 36)
        with torch.no_grad():
            shifted = model.denoiser.get_submodule("backbone")(torch.cat([after, x[:, :-1]], 1), level)
        found = model.denoiser.log_probs(x, torch.ones(3))  # type: ignore[operator]
        torch.testing.assert_close(found, shifted[..., :37].log_softmax(-1), rtol=0, atol=1e-5)
        assert len(model.sample(1)[0].tokens) == 12


def duo_law(p: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The released posterior of uniform noise."""
    states, here = p.shape[-1], F.one_hot(z, p.shape[-1]).double()
    ratio, base = alpha_t / alpha_s, (1 - alpha_t / alpha_s) * (1 - alpha_s) / states
    above = alpha_t * states * p * here + (ratio - alpha_t) * here + (alpha_s - alpha_t) * p + base
    return above / (alpha_t * states * p.gather(-1, z[..., None]) + 1 - alpha_t)


def mdlm_law(p: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The released posterior of absorbing noise, of mask tokens; the others stay."""
    mask = p.shape[-1] - 1
    masked = (alpha_s - alpha_t) / (1 - alpha_t) * p + (1 - alpha_s) / (1 - alpha_t) * F.one_hot(
        torch.tensor(mask), mask + 1
    )
    return torch.where((z == mask)[..., None], masked, F.one_hot(z, mask + 1).double())


def our_law(model: Model, z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The law of a step of the model's own sampler: the mixture of its routes."""
    process, sampler = model.process(), model.sampler
    p = model.denoiser.log_probs(z, alpha_t).double().exp()  # type: ignore[operator]
    at_z = p.gather(-1, z[..., None])[..., 0]
    routes = sampler.routes(at_z, process.prior_of(z), alpha_t[:, None], alpha_s[:, None])  # type: ignore[attr-defined]
    here = F.one_hot(z, process.vocab_size).double()
    mixed: Tensor = (
        routes.stay[..., None] * here + routes.belief[..., None] * p + routes.prior[..., None] * process.prior()
    )
    return mixed


def test_the_released_laws_hold_for_imported_networks(golden: Path, tmp_path: Path, imported: Import) -> None:
    """The released formulas give the reference tensors, and our samplers with imported networks the same formulas."""
    for file, law in (("posterior_duo_K27", duo_law), ("posterior_mdlm_K27", mdlm_law)):
        known = {
            name: torch.from_numpy(value) for name, value in np.load(golden / f"{file}.npz").items() if name[0] != "_"
        }
        p = known["x_theta_f64"] if law is duo_law else known["log_x_theta"].double().exp()
        levels = (known[name].double()[..., None] for name in ("alpha_t", "alpha_s"))
        rows = torch.ones_like(known["xt"], dtype=torch.bool) if law is duo_law else known["xt"] == 27
        found = law(p, known["xt"], *levels)[rows]
        torch.testing.assert_close(found, known["q_xs_f64"][rows], rtol=0, atol=3e-6)  # their alphas are float32
    tensors, data = reference_tensors(golden), np.load(golden / "dit_tiny.npz")
    z, alpha_t = torch.from_numpy(data["x"]), (-torch.from_numpy(data["sigma"]).double()).exp()
    alpha_s = alpha_t + 0.5 * (1 - alpha_t)
    duo = load(imported(write_folder(tmp_path / "duo", prefixed(tensors))), device="cpu")
    p = torch.from_numpy(data["logits"]).double().softmax(-1)
    expected = duo_law(p, z, alpha_t[:, None, None], alpha_s[:, None, None])
    torch.testing.assert_close(our_law(duo, z, alpha_t, alpha_s), expected, rtol=0, atol=1e-5)
    config = changed(HF_CONFIG, model_type="mdlm", causal=None, var_min=None, time_conditioning=False)
    mdlm = load(imported(write_folder(tmp_path / "mdlm", prefixed(tensors), config), NUM_TOKENS - 1), device="cpu")
    assert mdlm.recipe.method == MDLM()
    z = torch.where(torch.arange(12) % 2 == 0, 36, z.clamp_max(35))
    alpha_t, alpha_s = (torch.tensor(levels).double() for levels in ([0.1, 0.4, 0.7], [0.3, 0.9, 1.0]))
    with torch.no_grad():
        logits = mdlm.denoiser.get_submodule("backbone")(z, torch.zeros(3)).double()
    logits[..., 36] = -torch.inf
    expected = mdlm_law(logits.softmax(-1), z, alpha_t[:, None, None], alpha_s[:, None, None])
    torch.testing.assert_close(our_law(mdlm, z, alpha_t, alpha_s), expected, rtol=0, atol=1e-6)


def test_the_layout_of_the_sedd_paper(golden: Path, tmp_path: Path, imported: Import) -> None:
    """Names without a prefix, a configuration in sections; the scores are those of the reference logits."""
    source = write_folder(tmp_path / "sedd", reference_tensors(golden), SEDD_CONFIG)
    run, data = imported(source, NUM_TOKENS - 1), np.load(golden / "dit_tiny.npz")
    model = load(run, device="cpu")
    assert model.recipe.method == SEDD()
    noisy = torch.from_numpy(data["sigma"]) > 0  # of clean tokens there are no ratios
    z, sigma, logits = (torch.from_numpy(data[name])[noisy] for name in ("x", "sigma", "logits"))
    found = model.denoiser.log_ratios(z, (-sigma.double()).exp())  # type: ignore[operator]
    scaled = logits.double() - torch.expm1(sigma.double()).log()[:, None, None] - np.log(36)
    torch.testing.assert_close(found.double(), scaled.scatter(-1, z[..., None], 0.0), rtol=0, atol=1e-5)
    export_run(run, tmp_path / "again", "duo-hf")
    assert filecmp.cmp(source / "model.safetensors", tmp_path / "again" / "model.safetensors", shallow=False)


def test_older_files_hold_the_same_weights(golden: Path, tmp_path: Path, imported: Import) -> None:
    """pytorch_model.bin instead of safetensors, and the checkpoint of a training with the code of the SEDD paper."""
    tensors = reference_tensors(golden)
    binary = write_folder(tmp_path / "hf", prefixed(tensors))
    (binary / "model.safetensors").unlink()
    torch.save(prefixed(tensors), binary / "pytorch_model.bin")
    content = {"optimizer": {"state": {}}, "model": tensors, "ema": {"shadow_params": averaged(tensors)}, "step": 70}
    torch.save(content, tmp_path / "checkpoint.pth")
    wanted = {"method": "sedd", "length": 12, "heads": 4}
    for source, num_tokens, said, step in (
        (binary, NUM_TOKENS, {}, 0),
        (tmp_path / "checkpoint.pth", NUM_TOKENS - 1, wanted, 70),
    ):
        model = load(imported(source, num_tokens, **said), device="cpu", weights="model")
        for theirs, ours in weight_names(2, causal=False).items():
            assert torch.equal(model.denoiser.get_parameter(f"backbone.{ours}"), tensors[theirs])
        assert model.step == step


def test_the_average_is_matched_by_order_and_is_what_is_sampled(golden: Path, tmp_path: Path, imported: Import) -> None:
    tensors = reference_tensors(golden)
    run = imported(write_checkpoint(tmp_path / "model.ckpt", tensors))
    average, raw = (load(run, device="cpu", weights=which).denoiser for which in ("ema", "model"))
    shadow = iter(averaged(tensors))
    for theirs, ours in weight_names(2, causal=False).items():
        assert torch.equal(average.get_parameter(f"backbone.{ours}"), next(shadow))
        assert torch.equal(raw.get_parameter(f"backbone.{ours}"), tensors[theirs])
    (row,) = [each for each in overviews(tmp_path) if each.state == "imported"]
    assert (row.recipe, row.step) == ("imported-duo", 1000)


@pytest.mark.parametrize("layout", ["duo-hf", "duo-ckpt"])
def test_export_is_the_inverse_of_import(layout: Any, golden: Path, tmp_path: Path, imported: Import) -> None:
    """The same tensors, names, order and types; import again gives the same bytes."""
    tensors = reference_tensors(golden)
    if layout == "duo-hf":
        source = write_folder(
            tmp_path / "file", prefixed({**tensors, "blocks.0.norm1.weight": torch.ones(64).bfloat16()})
        )
        target = tmp_path / "exported"
    else:
        source, target = write_checkpoint(tmp_path / "file.ckpt", tensors), tmp_path / "exported.ckpt"
    run = imported(source)
    export_run(run, target, layout)
    if layout == "duo-hf":
        assert filecmp.cmp(source / "model.safetensors", target / "model.safetensors", shallow=False)
        assert json.loads((target / "config.json").read_text()) == HF_CONFIG
    else:
        before, after = (torch.load(path, weights_only=True) for path in (source, target))
        assert list(before["state_dict"]) == list(after["state_dict"])
        assert all(torch.equal(value, after["state_dict"][name]) for name, value in before["state_dict"].items())
        pairs = zip(before["ema"].pop("shadow_params"), after["ema"].pop("shadow_params"), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
        assert (before["ema"], before["global_step"]) == (after["ema"], after["global_step"])
    again = imported(target)
    for group in ("model.safetensors", "ema.safetensors"):
        (one,), (other,) = (list(each.glob(f"checkpoints/step-*/{group}")) for each in (run, again))
        assert filecmp.cmp(one, other, shallow=False)


EXPRESSIBLE = ("backbone.conv=0", "training.steps=2", "generation.temperature=1", "generation.tail=ancestral")
OURS = {
    "duo": (),
    "udlm": ("method=UDLM",),
    "mdlm": ("method=MDLM", "method.time=true"),
    "sedd": ("method=SEDD", "method.noise=uniform"),
    "d3pm": ("method=D3PM", "method.num_steps=50"),
    "ar": ("method=AR",),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_runs_of_ours_write_the_same_after_export_and_import(name: str, english: Path, tmp_path: Path) -> None:
    run, steps = tmp_path / "run", None if name == "ar" else 6
    session.train(small_recipe(english, *EXPRESSIBLE, *OURS[name]), run)

    def written(folder: Path) -> list[list[int]]:
        return [each.tokens for each in load(folder, device="cpu").sample(2, length=24, seed=3, steps=steps)]

    expected = written(run)
    for layout, place in (("duo-hf", tmp_path / "folder"), ("duo-ckpt", tmp_path / "model.ckpt")):
        export_run(run, place, layout)  # type: ignore[arg-type]
        again = import_released(place, tmp_path / layout, ImportRequest(tokenizer=str(run)))
        assert written(again) == expected
        assert checkpoint.latest_step(again / "checkpoints") == (2 if layout == "duo-ckpt" else 0)
        assert type(read_recipe(again).method) is type(read_recipe(run).method)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (("backbone.conv=3",), "has a convolution (backbone.conv=3)"),
        (("backbone.activation=relu2",), "its activation is relu2"),
        (("backbone.mlp_ratio=2",), "its MLP is 2 times as wide"),
        (("method=Plaid",), "its method is Plaid"),
        (("method=D3PM", "method.training_schedule=Cosine", "method.training_schedule.eps=0"), "its sampling schedule"),
    ],
)
def test_what_the_layout_cannot_express_is_refused(
    changes: tuple[str, ...], reason: str, english: Path, tmp_path: Path, imported: Import, golden: Path
) -> None:
    run = imported(write_folder(tmp_path / "hf", prefixed(reference_tensors(golden))))
    recipe = small_recipe(english, "backbone.conv=0", *changes)
    (run / "recipe.json").write_text(json.dumps(catalogue.to_json(recipe)))
    with pytest.raises(ValueError, match="cannot be exported") as caught:
        export_run(run, tmp_path / "out", "duo-hf")
    assert reason in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_labels_cannot_be_exported(golden: Path, tmp_path: Path, imported: Import) -> None:
    run = imported(write_folder(tmp_path / "hf", prefixed(reference_tensors(golden))))
    identity = json.loads((run / "corpus.json").read_text())
    (run / "corpus.json").write_text(json.dumps({**identity, "labels": ["a", "b"]}))
    with pytest.raises(ValueError, match="it has 2 labels"):
        export_run(run, tmp_path / "out.ckpt", "duo-ckpt")


@pytest.mark.slow
def test_an_imported_run_is_a_run_like_any_other(
    golden: Path, tmp_path: Path, imported: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    """eval on a given text, sample, distill, plan; without a text, and to continue its training, it is refused."""
    run = imported(write_checkpoint(tmp_path / "model.ckpt", reference_tensors(golden)))
    text = tmp_path / "numbers.txt"
    text.write_text("\n".join(" ".join(str((7 * row + 3 * place) % 36) for place in range(50)) for row in range(40)))
    assert main(["eval", str(run)]) == 2
    assert "was imported without the text that it was trained on" in capsys.readouterr().err
    assert main(["eval", str(run), "--corpus", str(text), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 1000
    assert main(["sample", str(run), "--num", "1", "--steps", "3"]) == 0
    rounds = ["--rounds", "1", "--round-steps", "2", "--set", "training.batch_size=4"]
    assert main(["distill", str(run), "--corpus", str(text), "--out", str(tmp_path / "dcd"), *rounds]) == 0
    made = load(tmp_path / "dcd", device="cpu")
    assert made.recipe.data.tokenizer == KeptTokenizer(None, 37, made.tokenizer.fingerprint)
    tuned = ["--data", str(text), "--out", str(tmp_path / "tuned"), "--steps", "2", "--set", "training.batch_size=4"]
    assert main(["train", "--from", str(run), *tuned]) == 0
    assert load(tmp_path / "tuned", device="cpu").recipe.data.tokenizer == made.recipe.data.tokenizer
    assert main(["plan", str(run)]) == 0
    assert "imported-duo: 0.3 M parameters" in capsys.readouterr().out
    assert main(["train", "imported-duo", "--out", str(run), "--resume", "--data", str(text)]) == 2
    assert "a model that was imported has none" in capsys.readouterr().err


def test_the_extra_state_of_duo_is_kept_and_reads_as_what_it_is(golden: Path, tmp_path: Path) -> None:
    """37 states and 36 ids: "[PAD]" is a state of the noise, a text never has it, and decoding shows it."""
    words = [f"w{number}" for number in range(35)]
    vocabulary = {piece: index for index, piece in enumerate([*words, "<|endoftext|>"])}
    _byte_pairs(vocabulary, []).save(tmp_path / "pairs")
    assert load_tokenizer(tmp_path / "pairs").vocab_size == 36
    source = write_folder(tmp_path / "hf", prefixed(reference_tensors(golden)))
    run = import_released(source, tmp_path / "run", ImportRequest(tokenizer=str(tmp_path / "pairs")))
    tokenizer = load(run, device="cpu").tokenizer
    assert (tokenizer.vocab_size, tokenizer.separator) == (37, 35)
    assert tokenizer.decode([0, 36, 1]) == "w0[PAD]w1"
    samples = load(run, device="cpu").sample(20, steps=2)
    assert any("[PAD]" in each.full_text for each in samples)


def test_extra_tokens_are_never_encoded() -> None:
    plain = BPE(vocab_size=300).train(["some text [PAD] and more text"])
    extended = with_extra_tokens(plain, 2)
    text = "text [PAD] [EXTRA 1] more<|endoftext|>"
    assert extended.encode(text).tolist() == plain.encode(text).tolist()
    assert extended.vocab_size == plain.vocab_size + 2
    assert extended.decode([*plain.encode("more"), plain.vocab_size, plain.vocab_size + 1]) == "more[PAD][EXTRA 1]"
    assert extended.fast is not None  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="give the tokenizer that the model was trained with"):
        with_extra_tokens(ByteTokenizer(), 1)
