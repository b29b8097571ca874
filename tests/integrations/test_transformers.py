"""Our models and tokenizers in Hugging Face `transformers`: the same ids, and the same logits to the last bit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pretrained import untrained_model
from torch import Tensor

from duality.fused.lazy import belief_of, ratios_of
from duality.methods.ar import AR
from duality.models.model import Model, load, network
from duality.protocols import Denoiser, Vocabulary
from duality.tokenizers.fast_pairs import byte_characters
from duality.tokenizers.library import _byte_pairs, _word_pieces
from duality.tokenizers.specs import BPE, Bytes, Characters, Nucleotides, Numbers, Pretrained, Smiles, Text8
from duality.tokenizers.tokenizer import NumberTokenizer, Tokenizer
from duality.tokenizers.transformers_files import ExtraState, transformers_files

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
classes: Any = pytest.importorskip("duality.integrations.transformers", exc_type=ImportError)

TEXT = "Hello world, the cat's  been\n\tthere — 12 ümläut 猫 <|endoftext|> [SEP] <|mask|> end."
PAIRS = {**byte_characters(), "th": 256, "<|endoftext|>": 257}
PIECES = [
    "[UNK]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{each}" for each in "abcdehlnortwu"),
    ",",
    "[",
]


def tokenizers(english: Path) -> dict[str, tuple[Tokenizer, str]]:
    """A tokenizer of every kind, and a text for it."""
    return {
        "bytes": (Bytes().train([]), TEXT),
        "characters": (Characters().train([TEXT]), TEXT),
        "bpe": (BPE(400).train([english.read_text(encoding="utf-8")]), TEXT),
        "pairs of gpt2": (_byte_pairs(PAIRS, ["t h"]), TEXT),
        "wordpiece": (_word_pieces(PIECES), TEXT),
        "text8": (Text8().train([]), "the cat sat"),
        "nucleotides": (Nucleotides().train([]), "ACGTacgtNnRYry"),
        "smiles": (Smiles().train(["C[C@H](Br)Cl.c1ccccc1%10"]), "C[C@H](Br)Clc1cc%10Br"),
        "numbers": (Numbers(30).train([]), "3 007 0 00 29\n 12"),
    }


def check_tokenizer(tokenizer: Tokenizer, text: str, extra: ExtraState, folder: Path) -> None:
    """The files of a tokenizer give the same ids, the same separator and the extra state."""
    files = transformers_files(tokenizer, extra, 4096)
    assert files is not None
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    found = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode(text).tolist()
    assert found(text)["input_ids"] == ids
    assert found.decode(ids) == tokenizer.decode(ids)
    assert found.eos_token_id == tokenizer.separator
    assert {"mask_token": found.mask_token_id, "bos_token": found.bos_token_id, None: tokenizer.vocab_size}[
        extra
    ] == tokenizer.vocab_size


def test_auto_tokenizer_gives_our_ids(english: Path, tmp_path: Path) -> None:
    extras: tuple[ExtraState, ...] = (None, "mask_token", "bos_token")
    for name, (tokenizer, text) in tokenizers(english).items():
        for extra in extras:
            check_tokenizer(tokenizer, text, extra, tmp_path / name / str(extra))


def test_special_tokens_are_read_as_tokens_if_asked_for(tmp_path: Path) -> None:
    check_tokenizer(Bytes().train([]), TEXT, "mask_token", tmp_path / "bytes")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "bytes", split_special_tokens=False)
    assert found("a<|mask|>b")["input_ids"] == [97, 257, 98]


def test_an_unknown_symbol_is_an_error_there_too(tmp_path: Path) -> None:
    check_tokenizer(Characters().train(["abc"]), "cab", None, tmp_path / "characters")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "characters")
    with pytest.raises(Exception, match="Missing"):
        found("abcd")


def test_a_tokenizer_without_such_files_is_said_to_have_none(tmp_path: Path) -> None:
    assert transformers_files(NumberTokenizer(2_000_000), None, 32) is None
    place = replace(untrained_model("duo-laptop"), tokenizer=NumberTokenizer(2_000_000)).save_pretrained(tmp_path / "x")
    assert not (place / "tokenizer.json").exists()
    assert "has no form that `transformers` can read" in (place / "README.md").read_text(encoding="utf-8")


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased"])
def test_published_tokenizers_have_our_ids(name: Any, tmp_path: Path) -> None:
    try:
        tokenizer = Pretrained(name).train([])
    except ValueError as error:
        pytest.skip(str(error))
    check_tokenizer(tokenizer, TEXT, "mask_token", tmp_path / name)


def own_logits(model: Model, z: Tensor, alpha: Tensor, valid: Tensor | None = None) -> Tensor:
    """What our own model says."""
    if isinstance(model.denoiser, Denoiser):
        return belief_of(model.denoiser, z, alpha, valid).log_probs()
    return ratios_of(model.denoiser, z, alpha, valid).log_ratios()


def noisy(model: Model) -> Tensor:
    """Tokens of three rows, half of which are the mask token if there is one."""
    z = torch.randint(0, 257, (3, 32), generator=torch.Generator().manual_seed(0))
    return z if model.mask_id is None else torch.where(z % 2 == 0, model.mask_id, z)


@pytest.mark.parametrize("name", ["duo", "mdlm", "sedd-absorb", "d3pm-absorb", "diffusion-bert", "bert-mouth"])
def test_logits_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    model = untrained_model(f"{name}-laptop")
    folder = model.save_pretrained(tmp_path / "model")
    found = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    z, t = noisy(model), torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    alpha, mask = model.schedule.alpha(t), torch.ones(3, 32, dtype=torch.int64)
    own = own_logits(model, z, alpha)
    assert torch.equal(found(z, timesteps=t).logits, own)
    assert torch.equal(found(z, timesteps=t, attention_mask=mask).logits, own)
    mask[:, 20:] = 0
    valid = found(z, timesteps=t, attention_mask=mask).logits
    assert torch.equal(valid, own_logits(model, z, alpha, mask.bool()))
    changed = found(torch.where(mask.bool(), z, 5), timesteps=t, attention_mask=mask).logits
    assert torch.equal(changed[:, :20], valid[:, :20])  # what is masked away has no influence
    assert own.shape[-1] == found.config.vocab_size
    found.save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "again")
    assert torch.equal(again(z, timesteps=t).logits, own)
    shutil.copy(folder / "duality_tokenizer.json", tmp_path / "again")
    ours = load(tmp_path / "again")
    assert torch.equal(own_logits(ours, z, alpha), own)


def test_without_times_each_method_does_what_it_can(tmp_path: Path) -> None:
    found = {}
    for name in ("duo", "mdlm", "d3pm-absorb"):
        model = untrained_model(f"{name}-laptop")
        folder = model.save_pretrained(tmp_path / name)
        found[name] = model, transformers.AutoModelForMaskedLM.from_pretrained(folder)
    model, other = found["mdlm"]
    z = noisy(model)
    assert torch.equal(other(z).logits, other(z, timesteps=0.3).logits)
    model, other = found["d3pm-absorb"]
    share = torch.ne(z, 257).double().mean(1)
    assert torch.equal(other(z).logits, own_logits(model, z, share))
    model, other = found["duo"]
    with pytest.raises(ValueError, match="Duo needs timesteps"):
        other(noisy(model))
    for wrong in (1.5, -0.1, torch.tensor([0.1, 0.2])):
        with pytest.raises(ValueError, match="give one time in"):
            other(noisy(model), timesteps=wrong)


def test_labels_give_a_loss_and_classes_condition(tmp_path: Path) -> None:
    model = untrained_model("duo-laptop", labels=("austen", "melville"))
    found = transformers.AutoModelForMaskedLM.from_pretrained(model.save_pretrained(tmp_path / "classes"))
    z, classes = noisy(model), torch.tensor([0, 1, 1])
    answers = found(z, timesteps=0.5, class_labels=classes, labels=torch.where(z < 128, z, -100))
    expected = torch.nn.functional.nll_loss(answers.logits[z < 128], z[z < 128])
    torch.testing.assert_close(answers.loss, expected)
    answers.loss.backward()
    assert all(parameter.grad is not None for parameter in found.parameters())
    assert not torch.equal(answers.logits, found(z, timesteps=0.5).logits)


def test_the_autoregressive_model_is_a_causal_one(tmp_path: Path) -> None:
    model = untrained_model("ar-laptop")
    folder = model.save_pretrained(tmp_path / "ar")
    found = transformers.AutoModelForCausalLM.from_pretrained(folder)
    x = noisy(model)
    begin = torch.full((3, 1), found.config.bos_token_id)
    answers = found(torch.cat([begin, x[:, :-1]], 1))
    own = own_logits(model, x, torch.ones(3, dtype=torch.float64))
    assert torch.equal(answers.logits, own)
    nats = found(torch.cat([begin, x], 1), labels=torch.cat([begin, x], 1)).loss
    expected = torch.nn.functional.nll_loss(own.flatten(0, 1), x.flatten())
    torch.testing.assert_close(nats, expected)
    written = found.generate(begin, attention_mask=torch.ones_like(begin), max_new_tokens=4, do_sample=False)
    greedy = begin
    for _ in range(4):
        greedy = torch.cat([greedy, found(greedy).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(written, greedy[:, : written.shape[1]])
    left = torch.ones(3, 32)
    left[:, :4] = 0
    with pytest.raises(ValueError, match="pad on the right"):
        found(x, attention_mask=left)
    found.save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(again(x).logits, found(x).logits)


def test_an_autoregressive_model_may_begin_with_a_token(tmp_path: Path) -> None:
    """As the released one does: the state behind the last token is then never read nor written."""
    plain = untrained_model("ar-laptop")
    begin = plain.tokenizer.separator
    assert begin is not None
    recipe = replace(plain.recipe, method=AR(begin=begin))
    denoiser = network(recipe, Vocabulary(plain.tokenizer.vocab_size, 0))
    denoiser.load_state_dict(plain.denoiser.state_dict())
    model = replace(plain, recipe=recipe, denoiser=denoiser.requires_grad_(False))
    model.save_pretrained(tmp_path / "ar")
    again = load(tmp_path / "ar")
    assert [each.tokens for each in again.sample(2, seed=4)] == [each.tokens for each in model.sample(2, seed=4)]
    other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ar")
    assert (other.config.bos_token_id, other.config.vocab_size) == (begin, plain.tokenizer.vocab_size + 1)
    ids = torch.tensor([[7, 8, 9]])
    read = torch.cat([torch.full((1, 1), begin), ids[:, :-1]], 1)
    assert torch.equal(other(read).logits, own_logits(model, ids, torch.ones(1, dtype=torch.float64)))


def test_a_wrong_class_or_config_is_refused(tmp_path: Path) -> None:
    folder = untrained_model("ar-laptop").save_pretrained(tmp_path / "ar")
    with pytest.raises(ValueError, match="use AutoModelForCausalLM"):
        transformers.AutoModelForMaskedLM.from_pretrained(folder)
    folder = untrained_model("plaid-laptop").save_pretrained(tmp_path / "plaid")
    with pytest.raises(ValueError, match="reads vectors, not tokens"):
        transformers.AutoModelForMaskedLM.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.recipe = {**config.recipe, "colour": 3}
    with pytest.raises(ValueError, match="Recipe has no field 'colour'"):
        classes.DualityForMaskedLM(config)
