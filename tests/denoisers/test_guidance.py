"""Labels: in the data, dropped at a rate in training, guidance in sampling. And memoized beliefs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import session
from support.runs import quiet, small_recipe
from torch import Tensor

from duality.cli.main import main
from duality.data.packing import Sequences
from duality.denoisers.clamp import Clamped, ClampedScore
from duality.denoisers.conditioning import Guided, Labelled, with_labels
from duality.denoisers.filters import Temperature, TopP
from duality.denoisers.memo import Memoized
from duality.denoisers.readouts import CausalDenoiser, MeanDenoiser, ScoreDenoiser, SubsDenoiser
from duality.denoisers.wrapping import unwrap
from duality.diffusion import posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.models import folder
from duality.models import model as run_model
from duality.networks import SIZES
from duality.noise import Noise
from duality.protocols import Dropout, Latent, Valid
from duality.recipes import corpus as recipe_corpus
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import generate
from duality.training.loop import _drop_labels
from duality.training.settings import Training


def random_network(network: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def conditional(num_labels: int = 3, absorbing: bool = False) -> MeanDenoiser | SubsDenoiser:
    backbone = SIZES["nano"]().build(9, num_labels=num_labels)
    denoiser = SubsDenoiser(backbone, Absorbing(9)) if absorbing else MeanDenoiser(backbone)
    random_network(denoiser)
    return denoiser.double().requires_grad_(False)


Z = torch.tensor([[0, 3, 8, 2], [7, 7, 1, 8]])
ALPHA = torch.tensor([0.4, 0.6], dtype=torch.float64)


@pytest.mark.parametrize("absorbing", [False, True])
def test_guidance_is_the_formula(absorbing: bool) -> None:
    denoiser = conditional(absorbing=absorbing)
    conditioned = with_labels(denoiser, torch.tensor([1, 1])).log_probs(Z, ALPHA)  # type: ignore[union-attr]
    unconditioned = denoiser.log_probs(Z, ALPHA)
    assert torch.equal(unconditioned, Labelled(denoiser, torch.tensor([3, 3])).log_probs(Z, ALPHA))
    for scale in (0.0, 1.0, 2.5):
        got = Guided(denoiser, 1, scale).log_probs(Z, ALPHA)
        p = conditioned.exp() ** scale * unconditioned.exp() ** (1 - scale)
        expected = torch.where(unconditioned == -torch.inf, 0.0, p)
        expected = expected / expected.sum(-1, keepdim=True)
        assert torch.allclose(got.exp(), expected, atol=1e-12)
    if absorbing:
        assert (Guided(denoiser, 1, 2.5).log_probs(Z, ALPHA)[..., 8] == -torch.inf).all()


def test_guidance_composes_with_samplers_and_wrappers() -> None:
    denoiser = conditional()
    tokens, known = torch.tensor([5, 0, 0, 0]), torch.tensor([True, False, False, False])
    wrapped = Clamped(TopP(Temperature(Guided(denoiser, 2, 3.0), 0.8), 0.9), tokens, known)
    got = generate(wrapped, LogLinear(), Ancestral(Uniform(9)), num=5, length=4, steps=4)
    assert (got[:, 0] == 5).all()
    assert unwrap(wrapped) is denoiser


def test_impossible_guidance_is_refused() -> None:
    plain = MeanDenoiser(SIZES["nano"]().build(9))
    with pytest.raises(ValueError, match=r"unconditional model.*data\.labels=true"):
        Guided(plain, 0, 1.0)
    with pytest.raises(ValueError, match="labels 0 to 2"):
        Guided(conditional(), 3, 1.0)
    with pytest.raises(ValueError, match="at least 0"):
        Guided(conditional(), 0, -1.0)
    score = ScoreDenoiser(SIZES["nano"]().build(9, num_labels=2), Uniform(9))
    with pytest.raises(ValueError, match="gives none"):
        Guided(score, 0, 1.0)
    for wrapper in (lambda: Temperature(score, 0.5), lambda: TopP(score, 0.5)):
        with pytest.raises(ValueError, match="leave it at 1"):
            wrapper()


def test_networks_and_processes_that_do_not_fit_are_refused() -> None:
    """A mask token for which the network has no state; a network that is not causal."""
    with pytest.raises(ValueError, match=r"the mask token, which is a state of its own.*build the network with 10"):
        SubsDenoiser(SIZES["nano"]().build(9), Absorbing(10))
    with pytest.raises(ValueError, match="build the network with 10"):
        ScoreDenoiser(SIZES["nano"]().build(9), Uniform(10))
    with pytest.raises(ValueError, match="causal=True"):
        CausalDenoiser(SIZES["nano"]().build(9))


def test_labels_are_dropped_at_the_stated_rate() -> None:
    denoiser = conditional()
    labels = torch.arange(20_000) % 3
    noise = Noise.of(0, 0, torch.arange(20_000))
    kept = _drop_labels(denoiser, labels, Training(), noise)
    dropped = kept == 3
    assert abs(float(dropped.double().mean()) - 0.1) < 0.01
    assert torch.equal(kept[~dropped], labels[~dropped])
    everything = _drop_labels(denoiser, labels, replace(Training(), label_dropout=0.0), noise)
    assert torch.equal(everything, labels)


@pytest.fixture(scope="module")
def two_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of two classes that share no letter, one document in each line."""
    path = tmp_path_factory.mktemp("labelled") / "classes.jsonl"
    rows = [{"text": word * 6, "label": label} for _ in range(150) for label, word in (("low", "ab "), ("up", "XY "))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_class_conditional_model_writes_in_its_class(
    two_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From labelled text to guided samples, through the command line; the measure uses the labels too."""
    chosen = small_recipe(
        two_classes,
        "data.labels=true",
        "data.packing=document",
        "data.length=19",
        "method.curriculum=0",
        "training.steps=150",
        "training.batch_size=16",
        "training.learning_rate=5e-3",
    )
    session.train(chosen, tmp_path / "run", report=quiet)
    model = run_model.load(tmp_path / "run", report=quiet)
    assert model.label_names == ("low", "up")
    for label, mine, other in (("low", "ab", "XY"), ("up", "XY", "ab")):
        command = ["sample", str(tmp_path / "run"), "--num", "8", "--label", label, "--guidance", "2", "--json"]
        assert main(command) == 0
        text = "".join(json.loads(line)["text"] for line in capsys.readouterr().out.splitlines())
        assert sum(text.count(letter) for letter in mine) > 10 * (1 + sum(text.count(letter) for letter in other))
    corpus = recipe_corpus.prepare_corpus(chosen, quiet)
    held_out = Sequences(corpus.validation, 19, "document")
    informed = model.likelihood(held_out, num_draws=4).nats_per_token
    assert informed < 2.0

    class WithoutLabels(Sequences):
        def labels(self, indices: object) -> None:
            return None

    # without the label a sequence of 19 tokens costs about log 2 nats more
    uninformed = model.likelihood(WithoutLabels(corpus.validation, 19, "document"), num_draws=4).nats_per_token
    assert uninformed > informed + 0.01
    for arguments, message in (
        (["--label", "middle"], "unknown label 'middle'"),
        (["--guidance", "2"], "guidance without label: say towards which of low, up"),
    ):
        assert main(["sample", str(tmp_path / "run"), *arguments]) == 2
        assert message in capsys.readouterr().err


def test_the_recipe_with_authors_trains_is_measured_and_writes(
    english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder per author; 50 steps, as for every laptop recipe (tests/methods/test_models.py)."""
    for author, text in (("austen", english.read_text()), ("melville", english.read_text().upper())):
        (tmp_path / "books" / author).mkdir(parents=True)
        (tmp_path / "books" / author / "book.txt").write_text(text)
    chosen = small_recipe(tmp_path / "books", "training.steps=50", name="duo-laptop-authors")
    assert session.train(chosen, tmp_path / "run", report=quiet) == session.Outcome(50, 0)
    assert main(["eval", str(tmp_path / "run"), "--draws", "1"]) == 0
    assert main(["sample", str(tmp_path / "run"), "--label", "melville", "--guidance", "2", "--num", "2"]) == 0
    assert "sample 2 of 2" in capsys.readouterr().out


def test_an_unconditional_run_refuses_guidance(
    english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session.train(small_recipe(english, "training.steps=2"), tmp_path / "run", report=quiet)
    assert main(["sample", str(tmp_path / "run"), "--label", "low", "--guidance", "2"]) == 2
    assert "data.labels=true" in capsys.readouterr().err


def test_wrapped_rows_cannot_have_labels(two_classes: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.packing=document"):
        small_recipe(two_classes, "data.labels=true")


class Counting:
    """A belief that depends on the tokens alone; it counts the sequences that it is called with."""

    def __init__(self) -> None:
        self.sequences = 0

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        assert isinstance(z, Tensor)
        self.sequences += len(z)
        generator = torch.Generator().manual_seed(1)
        table = torch.randn(7, 6, generator=generator, dtype=torch.float64)
        near = table[z] + 0.5 * table[z.roll(1, -1)]
        return torch.nn.functional.pad(torch.log_softmax(near, -1), (0, 1), value=-torch.inf)


def test_a_memoized_belief_changes_no_sample_and_needs_fewer_calls() -> None:
    """With more steps than tokens most steps unmask nothing: the network is called at most once per change."""
    plain, kept = Counting(), Counting()
    memo = Memoized(kept)
    process, steps, num, length = Absorbing(7), 64, 12, 5
    options: dict[str, Any] = {"num": num, "length": length, "steps": steps, "batch_size": 5}
    first = generate(plain, LogLinear(0.0), Ancestral(process), **options)
    second = generate(memo, LogLinear(0.0), Ancestral(process), **options)
    assert torch.equal(first, second)
    assert plain.sequences == num * steps
    assert kept.sequences == memo.calls <= num * (length + 1)


def test_mdlm_memoizes_its_beliefs(english: Path, tmp_path: Path) -> None:
    session.train(small_recipe(english, "training.steps=2", name="mdlm-laptop"), tmp_path / "run", report=quiet)
    model = run_model.load(tmp_path / "run", report=quiet)
    sizes = []
    hook = model.denoiser.backbone.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))  # type: ignore[union-attr]
    fast = model.generate(num=4, length=6, steps=100)
    hook.remove()
    assert sum(sizes) <= 4 * 7
    slow = generate(model.denoiser, model.schedule, model.sampler, num=4, length=6, steps=100)
    assert torch.equal(fast, slow)


def test_known_tokens_of_a_score_model_stay() -> None:
    torch.manual_seed(0)
    for process in (Uniform(9), Absorbing(9)):
        score = ScoreDenoiser(replace(SIZES["nano"](), embedding_std=0.1).build(9), process)
        tokens, known = torch.tensor([5, 0, 0, 2]), torch.tensor([True, False, False, True])
        wrapped = ClampedScore(score.double().requires_grad_(False), process, tokens, known)
        got = generate(wrapped, LogLinear(), Analytic(process), num=20, length=4, steps=5)
        assert (got[:, known] == tokens[known]).all()
        assert len(set(got[:, 1].tolist())) > 1


def test_an_untrained_score_model_has_the_ratios_of_the_uniform_belief() -> None:
    """For absorbing noise this needs the scale of the ratios; they are finite at alpha = 1 too."""
    z = torch.full((2, 3), 8)
    for alpha in (0.2, 0.9, 1.0):
        level = torch.full((2,), alpha, dtype=torch.float64)
        ratios = ScoreDenoiser(SIZES["nano"]().build(9), Absorbing(9)).double().log_ratios(z, level)
        assert torch.isfinite(ratios).all()
        if alpha < 1:
            belief = torch.full((2, 3, 9), 1 / 8, dtype=torch.float64)
            belief[..., 8] = 0
            expected = posterior.log_ratios(belief, z, level[:, None], Absorbing(9).prior())
            assert torch.allclose(ratios, expected, atol=1e-12)


def test_a_score_model_can_be_conditioned_on_a_label(two_classes: Path, tmp_path: Path) -> None:
    """Every kind of model can be conditioned; guidance needs a model with probabilities."""
    changes = ("data.labels=true", "data.packing=document", "training.steps=2")
    session.train(small_recipe(two_classes, *changes, name="sedd-absorb-laptop"), tmp_path / "run", report=quiet)
    assert main(["sample", str(tmp_path / "run"), "--label", "up", "--num", "2"]) == 0
    assert main(["sample", str(tmp_path / "run"), "--label", "up", "--num", "2", "--guidance", "2"]) == 2


def test_a_model_that_cannot_have_labels_leaves_no_run_behind(two_classes: Path, tmp_path: Path) -> None:
    for name in ("ar-laptop", "plaid-laptop", "diffusion-lm-laptop"):
        chosen = small_recipe(two_classes, "data.labels=true", "data.packing=document", name=name)
        with pytest.raises(ValueError, match=r"data\.labels=false"):
            session.train(chosen, tmp_path / name, report=quiet)
        assert not folder.exists(tmp_path / name)
        assert main(["train", name, "--dry-run", "--set", "data.labels=true", "data.packing=document"]) == 2


def test_prompts_reach_every_kind_of_model(english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, suffix in (("ar-laptop", False), ("sedd-uniform-laptop", True), ("mdlm-laptop", True)):
        folder = tmp_path / name
        session.train(small_recipe(english, "training.steps=2", name=name), folder, report=quiet)
        more = ["--suffix", "end"] if suffix else []
        assert main(["sample", str(folder), "--num", "2", "--prompt", "The ", "--json", *more]) == 0
        for line in capsys.readouterr().out.splitlines():
            text = json.loads(line)["text"]
            assert text.startswith("The ")
            assert text.endswith("end") or not suffix
    for name, arguments, message in (
        ("ar-laptop", ["--suffix", "end"], "left to right"),
        ("ar-laptop", ["--steps", "5"], "leave steps out"),
        ("ar-laptop", ["--sampler", "ancestral"], "its own sampler only"),
        ("sedd-uniform-laptop", ["--sampler", "ancestral"], "analytic sampler"),
        ("sedd-uniform-laptop", ["--temperature", "0.5"], "leave it at 1"),
        ("mdlm-laptop", ["--sampler", "analytic"], "sample it with its own sampler"),
    ):
        assert main(["sample", str(tmp_path / name), *arguments]) == 2
        assert message in capsys.readouterr().err


def test_temperature_and_top_p_reach_the_autoregressive_model(english: Path, tmp_path: Path) -> None:
    session.train(small_recipe(english, "training.steps=20", name="ar-laptop"), tmp_path / "run", report=quiet)
    model = run_model.load(tmp_path / "run", report=quiet)
    cold = model.generate(lambda d: Temperature(d, 1e-3), num=3, length=12)
    assert (cold == cold[0]).all()
    narrow = model.generate(lambda d: TopP(d, 1e-6), num=3, length=12)
    assert torch.equal(narrow, cold)
    free = model.generate(num=3, length=12)
    assert not (free == free[0]).all()
    # a sample is drawn from the model's own probabilities: greedy takes the most likely token at every position
    belief = model.denoiser.log_probs(cold, torch.ones(3))  # type: ignore[operator]
    assert torch.equal(belief.argmax(-1), cold)
