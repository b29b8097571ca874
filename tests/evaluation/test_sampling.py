"""The samples of cases: made as the case says, with their network calls counted for any backbone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import session
from support.judges import table_judge
from support.mixer import Mixer
from support.runs import quiet, small_recipe
from torch import Tensor

from duality.denoisers.conditioning import Guided
from duality.denoisers.filters import Temperature, TopP
from duality.denoisers.readouts import MeanDenoiser
from duality.denoisers.wrapping import count_calls, network_of
from duality.evaluation.judge import weights_id
from duality.evaluation.samples import Case, Samples
from duality.evaluation.sweep import Advance, RunSampler, Sweep, held_out_text
from duality.models.model import Model, network
from duality.protocols import Vocabulary
from duality.recipes import corpus as recipe_corpus
from duality.samplers.grids import Cosine
from duality.tokenizers.tokenizer import ByteTokenizer, text_before_end

CASE = Case(label="duo", run=Path("runs/duo"), steps=4, num=3, length=8)


def ignored(count: int) -> None:
    """Progress that is not shown."""


def untrained(english: Path, name: str, *assignments: str) -> Model:
    """An untrained model of 32 x 2 with random weights."""
    chosen = small_recipe(english, *assignments, name=name)
    tokenizer = ByteTokenizer()
    denoiser = network(chosen, Vocabulary(tokenizer.vocab_size))
    generator = torch.Generator().manual_seed(0)
    for value in denoiser.parameters():
        value.data += 0.1 * torch.randn(value.shape, generator=generator)
    return Model(chosen, 5, denoiser.requires_grad_(False), tokenizer)


def sample(model: Model, case: Case, batch_size: int = 8, advance: Advance = ignored) -> Samples:
    """The samples of a case, as if its run held this model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duality.evaluation.sweep.load", lambda *_, **__: model)
        return RunSampler("cpu", quiet, batch_size).sample(case, advance)


@pytest.mark.parametrize(("name", "steps"), [("duo-laptop", 6), ("ar-laptop", 32), ("mdlm-laptop", 64)])
def test_calls_are_counted(english: Path, name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call per step and sample; an autoregressive model one per token; a memoized belief fewer."""
    model = untrained(english, name)
    case = replace(CASE, steps=steps, num=5, length=32, seed=3)
    progress: list[int] = []
    clock = iter((10.0, 12.5))
    monkeypatch.setattr("duality.evaluation.sweep.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    samples = sample(model, case, 2, progress.append)
    assert sum(progress) == 3 * steps  # batches of 2, 2 and 1
    if name == "mdlm-laptop":
        assert 1 < samples.nfe < steps
    else:
        assert samples.nfe == steps
    assert samples.seconds_per_sample == 2.5 / 5
    assert samples.weights == weights_id(model)
    expected = model.generate(num=5, length=32, steps=steps, seed=3)
    assert torch.equal(samples.tokens, expected)
    assert samples.texts == [text_before_end(model.tokenizer, row) for row in expected.tolist()]


def test_a_case_is_sampled_as_it_says(english: Path) -> None:
    """Every setting of a case reaches the sampling loop: without it, the samples differ."""
    model = untrained(english, "duo-laptop")
    case = replace(
        CASE,
        length=32,
        seed=2,
        sampler="psi-cap",
        eta=0.3,
        tail="greedy",
        grid="cosine",
        top_p=0.9,
        temperature=0.8,
    )
    samples = sample(model, case)
    expected = model.generate(
        lambda denoiser: TopP(Temperature(denoiser, 0.8), 0.9),
        model.named_sampler("psi-cap", 0.3),
        4,
        num=3,
        length=32,
        seed=2,
        tail="greedy",
        grid=Cosine(),
    )
    assert torch.equal(samples.tokens, expected)
    plain = Case(label="duo", run=CASE.run, steps=4, num=3, length=32)
    for setting in ("seed", "sampler", "tail", "grid", "top_p", "temperature"):
        other = replace(case, **{setting: getattr(plain, setting)})
        other = replace(other, eta=None) if setting == "sampler" else other
        assert not torch.equal(sample(model, other).tokens, samples.tokens), setting


def test_an_unknown_tail_is_refused(english: Path) -> None:
    with pytest.raises(ValueError, match="tail is 'lazy': choose ancestral, greedy, posterior"):
        sample(untrained(english, "duo-laptop"), replace(CASE, tail="lazy"))


def test_guidance_needs_two_calls_per_step(english: Path) -> None:
    chosen = small_recipe(english)
    tokenizer = ByteTokenizer()
    model = Model(chosen, 5, network(chosen, Vocabulary(tokenizer.vocab_size, 2)), tokenizer, ("a", "b"))
    with count_calls(network_of(model.denoiser)) as calls:
        model.generate(lambda denoiser: Guided(denoiser, 0, 2.0), steps=4, num=3, length=16)
    assert calls.sequences == 2 * 4 * 3


def test_calls_of_any_backbone_are_counted() -> None:
    """A network that is not a DiT, called by a denoiser. After the block the network is unchanged."""
    built = Mixer().build(5)
    denoiser = MeanDenoiser(built)
    before = dict(vars(built))
    x, alpha = torch.zeros(3, 6, dtype=torch.int64), torch.full((3,), 0.5)
    expected = denoiser.log_probs(x, alpha)
    with count_calls(built) as calls:
        assert torch.equal(denoiser.log_probs(x, alpha), expected)
        denoiser.log_probs(x[:2], alpha[:2])
        with count_calls(built) as inner:
            denoiser.log_probs(x[:1], alpha[:1])
        assert inner.sequences == 1
    denoiser.log_probs(x, alpha)
    assert calls.sequences == 6
    assert vars(built) == before


def test_counting_ends_with_an_error() -> None:
    built = Mixer().build(5)
    before = dict(vars(built))

    def interrupted() -> Tensor:
        with count_calls(built):
            return built.hidden(torch.zeros(1, 6, dtype=torch.int64), torch.zeros(2, 3, 4))

    with pytest.raises(RuntimeError):
        interrupted()
    assert vars(built) == before


def test_different_weights_have_different_identifiers(english: Path) -> None:
    model = untrained(english, "duo-laptop")
    before = weights_id(model)
    assert before.startswith("step 5, ")
    assert weights_id(untrained(english, "duo-laptop")) == before
    assert weights_id(replace(model, step=6)) != before
    next(model.denoiser.parameters()).data.view(-1)[0] += 1e-6
    assert weights_id(model) != before


def test_a_run_is_measured(novel: Path, tmp_path: Path) -> None:
    """From training to the table, and again from the saved samples."""
    session.train(small_recipe(novel, "training.steps=3"), tmp_path / "run", report=quiet)
    cases = [Case(label="duo", run=tmp_path / "run", steps=steps, num=2, length=32) for steps in (2, 4)]
    said: list[str] = []
    for _ in range(2):
        source = RunSampler("cpu", quiet, batch_size=4)
        rows = Sweep(tmp_path / "out", source, said.append, table_judge()).measure(cases)
        assert [row.nfe for row in rows] == [2, 4]
    assert len([line for line in said if line.startswith("sampling ")]) == 2
    assert "| 4 |" in (tmp_path / "out" / "quality.md").read_text()


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        RunSampler("cpu", quiet, batch_size=0)


def test_real_text_is_that_of_the_validation_set(novel: Path) -> None:
    recipe = small_recipe(novel)
    found = held_out_text(recipe, 5, 32, quiet)
    assert found is not None
    assert tuple(found.tokens.shape) == (5, 32)
    corpus = recipe_corpus.prepare_corpus(recipe, quiet)
    count = -(-len(corpus.validation) // 32)
    starts = [32 * (number * count // 5) for number in range(5)]
    assert found.tokens.tolist() == [corpus.validation[start : start + 32].tolist() for start in starts]
    assert found.texts == [text_before_end(corpus.tokenizer, row) for row in found.tokens.tolist()]


def test_missing_real_text_is_reported(novel: Path) -> None:
    said: list[str] = []
    long = 10 * len(novel.read_text())
    assert held_out_text(small_recipe(novel), 5, long, said.append) is None
    assert any(line.startswith("no real text: no sequence of the validation set") for line in said)
