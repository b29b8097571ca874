"""The model of a run: samples that depend on their arguments, blanks that are filled in, vectors, refusals."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import load_newest
from support.runs import small_recipe

import duality
from duality.denoisers.conditioning import Guided, with_labels
from duality.denoisers.filters import Temperature, TopP
from duality.denoisers.memo import Memoized
from duality.denoisers.wrapping import network_of
from duality.models import sampling
from duality.models.model import Model
from duality.recipes.recipe import Generation
from duality.samplers.generate import Frame
from duality.tokenizers.pieces import Pieces
from duality.tokenizers.tokenizer import ByteTokenizer, text_before_end

NAMES = ("duo-laptop", "mdlm-laptop", "ar-laptop", "sedd-absorb-laptop", "plaid-laptop", "bert-mouth-laptop")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, english: Path) -> dict[str, Model]:
    """A model of each kind, trained for 20 steps."""
    folder = tmp_path_factory.mktemp("models")
    return {name: duality.train(small_recipe(english, name=name), out=folder / name) for name in NAMES}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A class-conditional model with the labels low and up."""
    folder = tmp_path_factory.mktemp("labelled")
    rows = [{"text": word * 6, "label": label} for _ in range(40) for label, word in (("low", "ab "), ("up", "XY "))]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = small_recipe(folder / "rows.jsonl", "data.labels=true", "data.packing=document")
    return duality.train(recipe, out=folder / "run")


def texts(samples: list[duality.Sample]) -> list[str]:
    return [sample.text for sample in samples]


# --- load


def test_loading_is_silent_and_takes_a_path_as_text(tmp_path: Path, english: Path) -> None:
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        duality.train(small_recipe(english, "training.steps=2"), out=str(tmp_path / "run"))
        loaded = [duality.load(str(tmp_path / "run")), duality.load(tmp_path / "run", weights="model", device="cpu")]
        loaded[0].sample(steps=2)
    assert (out.getvalue(), errors.getvalue()) == ("", "")
    assert isinstance(loaded[0], duality.Model)
    assert loaded[0].step == 2
    saved = load_newest(tmp_path / "run" / "checkpoints", print)
    assert saved is not None
    for model, group in zip(loaded, ("ema", "model"), strict=True):
        weights = dict(model.denoiser.named_parameters())
        assert all(torch.equal(weights[name], value) for name, value in saved.groups[group].items())


def test_what_loading_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run"):
        duality.load(str(tmp_path))
    with pytest.raises(ValueError, match="weights is 'average': choose 'ema'"):
        duality.load(tmp_path, weights="average")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"device is 'mps': GPUs of Apple have no float64.*use device cpu"):
        duality.load(tmp_path, device="mps")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device is 'cuda': torch sees no GPU"):
            duality.load(tmp_path, device="cuda")


# --- sample


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_deterministic_and_do_not_depend_on_the_batch(models: dict[str, Model], name: str) -> None:
    """Sample i of a seed is the same alone, among others, and in batches of any size."""
    model = models[name]
    first = model.sample(5, length=12)
    assert all(isinstance(sample, duality.Sample) and len(sample.tokens) == 12 for sample in first)
    assert first == model.sample(5, length=12, batch_size=2)
    assert first[:3] == model.sample(3, length=12)
    assert first != model.sample(5, length=12, seed=1)
    assert [sample.index for sample in first] == [0, 1, 2, 3, 4]
    assert [sample.full_text for sample in first] == [model.tokenizer.decode(sample.tokens) for sample in first]
    assert [sample.text for sample in first] == [text_before_end(model.tokenizer, sample.tokens) for sample in first]
    assert {(sample.seed, sample.tail, sample.steps) for sample in first} == {(0, "ancestral", model.sampler.steps(12))}


@pytest.mark.parametrize("name", ["duo-laptop", "mdlm-laptop", "sedd-absorb-laptop"])
def test_kept_tokens_stay(models: dict[str, Model], name: str) -> None:
    for sample in models[name].sample(3, length=12, prompt="Th", keep={5: 65, 11: 66}, steps=4):
        assert (sample.tokens[:2], sample.tokens[5], sample.tokens[11]) == ([84, 104], 65, 66)


def test_tokens_that_cannot_be_kept_are_refused(models: dict[str, Model]) -> None:
    with pytest.raises(ValueError, match=r"keep has token 9999 at place 3: places are 0 to 11, tokens 0 to 256"):
        models["duo-laptop"].sample(length=12, keep={3: 9999})
    with pytest.raises(ValueError, match="at place 12"):
        models["duo-laptop"].sample(length=12, keep={12: 1})
    with pytest.raises(ValueError, match="keep with an autoregressive model"):
        models["ar-laptop"].sample(length=12, keep={3: 1})


@pytest.mark.parametrize("name", [name for name in NAMES if name != "plaid-laptop"])
def test_prompt_and_suffix_are_kept(models: dict[str, Model], name: str) -> None:
    causal = name == "ar-laptop"
    suffix = "" if causal else " end"
    for text in texts(models[name].sample(3, length=20, prompt="The ", suffix=suffix, tail="greedy")):
        assert text.startswith("The ")
        assert text.endswith(suffix)


def test_a_sample_has_the_length_of_training_by_default(models: dict[str, Model]) -> None:
    (sample,) = models["duo-laptop"].sample(steps=2)
    assert len(sample.tokens) == models["duo-laptop"].length == 32
    assert sample.steps == 2


def test_every_argument_reaches_the_sampler(models: dict[str, Model]) -> None:
    """Each changes the samples of the same seed."""
    model = models["duo-laptop"]
    plain = model.sample(4, steps=6, length=16)
    options: dict[str, dict[str, Any]] = {
        "tail": {"tail": "greedy"},
        "sampler": {"sampler": "psi-rescale", "eta": 0.5},
        "grid": {"grid": "cosine"},
        "top_p": {"top_p": 0.3},
        "temperature": {"temperature": 0.2},
        "steps": {"steps": 3},
    }
    for name, option in options.items():
        changed = model.sample(4, **{"steps": 6, "length": 16, **option})
        assert [row.tokens for row in changed] != [row.tokens for row in plain], name


def test_what_is_not_given_is_that_of_the_recipe(models: dict[str, Model]) -> None:
    """Sampled by its own settings, a model writes what it writes when they are given."""
    model = models["duo-laptop"]
    how = Generation(steps=3, sampler="psi-rescale", tail="posterior", temperature=0.5)
    own = replace(model, recipe=replace(model.recipe, generation=how))
    given = model.sample(4, steps=3, sampler="psi-rescale", tail="posterior", temperature=0.5)
    assert own.sample(4) == given
    assert given[0].settings == "3 steps, posterior tail, temperature 0.5, seed 0"
    other = own.sample(4, tail="greedy", temperature=1.0, sampler="own")
    assert other == model.sample(4, tail="greedy", temperature=1.0, sampler="own")
    assert other[0].steps == 32, "the recipe's number of steps is for the recipe's sampler"
    blanks = own.fill("It was ___ dark", 2)
    assert blanks[0].settings == given[0].settings


@pytest.mark.parametrize(
    ("change", "words"),
    [({"steps": 0}, "steps is 0.*at least 1"), ({"temperature": 0.0}, "temperature is 0.0.*positive")],
)
def test_impossible_settings_of_sampling_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Generation(**change)


def test_filters_are_the_wrappers(models: dict[str, Model]) -> None:
    """``sample`` by names is ``generate`` with the wrappers, token by token."""
    model = models["mdlm-laptop"]
    by_names = model.sample(3, steps=5, length=16, top_p=0.8, temperature=0.7, sampler="psi-cap", eta=0.2)
    by_parts = model.generate(
        lambda denoiser: TopP(Temperature(denoiser, 0.7), 0.8),
        model.named_sampler("psi-cap", 0.2),
        5,
        num=3,
        length=16,
    )
    assert [sample.tokens for sample in by_names] == by_parts.tolist()


def test_watch_is_called_after_every_step(models: dict[str, Model]) -> None:
    frames: list[Frame] = []
    samples = models["mdlm-laptop"].sample(3, steps=4, length=8, batch_size=2, watch=frames.append)
    assert [(frame.step, frame.first) for frame in frames] == [(step, first) for first in (0, 2) for step in range(5)]
    last = [row for frame in frames if frame.step == 4 for row in frame.tokens.tolist()]
    assert last == [sample.tokens for sample in samples]


def test_a_memo_only_where_the_belief_ignores_the_noise_level(models: dict[str, Model]) -> None:
    for name, remembered in (("mdlm-laptop", True), ("duo-laptop", False), ("ar-laptop", False)):
        assert isinstance(sampling.with_memo(models[name].denoiser), Memoized) == remembered
    sharper = Temperature(models["mdlm-laptop"].denoiser, 0.5)
    assert isinstance(sampling.with_memo(sharper), Memoized)


def test_what_sampling_refuses(models: dict[str, Model]) -> None:
    duo, causal, gaussian = models["duo-laptop"], models["ar-laptop"], models["plaid-laptop"]
    with pytest.raises(ValueError, match="length is 0"):
        duo.sample(length=0)
    with pytest.raises(ValueError, match="prompt and suffix have 8 tokens, the sample 3"):
        duo.sample(length=3, prompt="too long")
    with pytest.raises(ValueError, match="num is 0"):
        duo.sample(0)
    with pytest.raises(ValueError, match=r"eta is 0\.1, and the model's own sampler has none"):
        duo.sample(eta=0.1)
    with pytest.raises(ValueError, match="no sampler 'psi'"):
        duo.sample(sampler="psi")
    with pytest.raises(ValueError, match="suffix with an autoregressive model"):
        causal.sample(suffix="end")
    with pytest.raises(ValueError, match="has no discrete process"):
        causal.sample(sampler="ancestral")
    for arguments in ({"prompt": "The "}, {"suffix": "end"}):
        with pytest.raises(ValueError, match="writes vectors, in which no token can be held in place"):
            gaussian.sample(**arguments)  # type: ignore[arg-type]


# --- labels


def test_a_label_and_its_guidance(labelled: Model) -> None:
    assert labelled.label_names == ("low", "up")
    given = labelled.sample(3, steps=3, label="up", temperature=1.0)
    denoiser = labelled.denoiser
    expected = labelled.generate(lambda _: with_labels(denoiser, torch.tensor([1])), steps=3, num=3, length=32)
    assert [sample.tokens for sample in given] == expected.tolist()
    guided = labelled.sample(3, steps=3, label="up", guidance=3.0, temperature=0.9)
    stronger: Any = Temperature(Guided(denoiser, 1, 3.0), 0.9)
    assert [row.tokens for row in guided] == labelled.generate(lambda _: stronger, steps=3, num=3, length=32).tolist()


def test_impossible_labels(labelled: Model, models: dict[str, Model]) -> None:
    with pytest.raises(ValueError, match="unknown label 'middle': choose from low, up"):
        labelled.sample(label="middle")
    with pytest.raises(ValueError, match="guidance without label: say towards which of low, up"):
        labelled.sample(guidance=2.0)
    for arguments in ({"label": "low"}, {"guidance": 2.0}):
        with pytest.raises(ValueError, match=r"trained without labels: train one.*data\.labels=true"):
            models["duo-laptop"].sample(**arguments)
    with pytest.raises(ValueError, match="unknown label 'middle'"):
        labelled.log_likelihood("ab ab", label="middle")


# --- fill


@pytest.mark.parametrize("name", ["duo-laptop", "mdlm-laptop", "sedd-absorb-laptop", "bert-mouth-laptop"])
def test_fill_keeps_the_known_text(models: dict[str, Model], name: str) -> None:
    samples = models[name].fill("The ___ sat on the ___", num=3, tokens_per_blank=5)
    known = [place for start, part in ((0, "The "), (9, " sat on the ")) for place in range(start, start + len(part))]
    letters = b"The " + bytes(5) + b" sat on the " + bytes(5)
    for sample in samples:
        assert len(sample.tokens) == len(letters)
        assert all(sample.tokens[place] == letters[place] for place in known)
        assert sample.text.startswith("The ")
        assert " sat on the " in sample.text
    assert len({tuple(sample.tokens) for sample in samples}) > 1


def test_blanks_of_any_form_and_length(models: dict[str, Model]) -> None:
    model = models["duo-laptop"]
    (sample,) = model.fill("A [?] of [?].", blank="[?]", tokens_per_blank=2, tail="greedy", steps=3)
    assert len(sample.tokens) == len("A xx of xx.")
    assert (sample.steps, sample.tail) == (3, "greedy")
    # without a number, a blank is as long as a word of the text: 12 bytes in 3 words
    (sample,) = model.fill("one ___ six ten.")
    assert len(sample.tokens) == len("one  six ten.") + 5
    assert model.fill("A ___", num=2, seed=3) == model.fill("A ___", num=2, seed=3, batch_size=1)


def test_what_fill_refuses(models: dict[str, Model]) -> None:
    with pytest.raises(ValueError, match="fill with an autoregressive model: it writes from left to right"):
        models["ar-laptop"].fill("The ___ sat")
    with pytest.raises(ValueError, match="fill with a Gaussian model: it writes vectors"):
        models["plaid-laptop"].fill("The ___ sat")
    duo = models["duo-laptop"]
    with pytest.raises(ValueError, match="has no blank '___'"):
        duo.fill("The cat sat")
    with pytest.raises(ValueError, match="tokens_per_blank is 0"):
        duo.fill("The ___", tokens_per_blank=0)
    with pytest.raises(ValueError, match=r"no word beside its blanks.*give tokens_per_blank"):
        duo.fill("___")
    assert len(duo.fill("___", tokens_per_blank=7)[0].tokens) == 7
    with pytest.raises(ValueError, match=r"sampling 1 sequences of 10,000,000,000,0.. tokens at a time needs at least"):
        duo.fill("The ___", tokens_per_blank=10**13)


# --- hidden


@pytest.mark.parametrize("name", [name for name in NAMES if name != "plaid-laptop"])
def test_hidden_vectors_have_a_row_for_each_token(models: dict[str, Model], name: str) -> None:
    tokens = torch.arange(10).view(2, 5)
    assert models[name].hidden(tokens, alpha=0.5).shape == (2, 5, 32)
    assert torch.equal(models[name].hidden(tokens[0]), models[name].hidden(tokens[:1]))


@pytest.mark.parametrize("name", ["duo-laptop", "mdlm-laptop", "ar-laptop"])
def test_hidden_vectors_are_what_the_head_projects(models: dict[str, Model], name: str) -> None:
    model, denoiser = models[name], network_of(models[name].denoiser)
    # at mask tokens, where there are any: a masked model is certain of all others
    tokens = torch.full((2, 5), 257) if model.mask_id else torch.arange(10).view(2, 5)
    belief = model.denoiser.log_probs(tokens, torch.full((2,), 0.5, dtype=torch.float64))  # type: ignore[operator]
    logits = denoiser.head(model.hidden(tokens, alpha=0.5))[..., :257]
    assert torch.allclose(torch.log_softmax(logits, -1), belief[..., :257], atol=1e-5)


def test_hidden_depends_on_the_level_where_the_network_does(models: dict[str, Model]) -> None:
    tokens = torch.arange(6)[None]
    for name, depends in (("duo-laptop", True), ("mdlm-laptop", False), ("ar-laptop", False)):
        same = torch.equal(models[name].hidden(tokens, alpha=0.2), models[name].hidden(tokens))
        assert same != depends


def test_what_hidden_refuses(models: dict[str, Model]) -> None:
    with pytest.raises(ValueError, match="it reads vectors, not tokens"):
        models["plaid-laptop"].hidden(torch.arange(4))
    for tokens, alpha in ((torch.zeros(3), 1.0), (torch.zeros(1, 1, 1, dtype=torch.int64), 1.0), (torch.arange(3), 0)):
        with pytest.raises(ValueError, match=r"give whole numbers \(B, L\)"):
            models["duo-laptop"].hidden(tokens, alpha=alpha)


# --- parts


def test_the_mask_token_is_a_part_of_the_model(models: dict[str, Model]) -> None:
    assert models["mdlm-laptop"].mask_id == 257
    assert models["duo-laptop"].mask_id is None
    assert models["ar-laptop"].mask_id is None


def test_pieces_of_a_text_join_to_it() -> None:
    text = "naïve 漢字"
    ids = ByteTokenizer().encode(text).tolist()
    pieces = Pieces(ByteTokenizer()).per_token(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    assert pieces[2:4] == ["", "ï"]


def test_a_row_of_a_sample_is_json(models: dict[str, Model]) -> None:
    (sample,) = models["duo-laptop"].sample(steps=2, length=4)
    row = sample.row(trained_steps=models["duo-laptop"].step)
    assert json.loads(json.dumps(row)) == row
    assert list(row) == ["index", "seed", "steps", "tail", "temperature", "trained_steps", "text", "tokens"]
    assert (row["trained_steps"], row["tokens"], row["text"]) == (20, sample.tokens, sample.text)
    full = sample.row(trained_steps=20, full=True)
    assert full == {**row, "full_text": sample.full_text}
