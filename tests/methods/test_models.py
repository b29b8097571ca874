"""Every model: each laptop recipe trains, is measured and samples; each recipe builds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support import session
from support.runs import quiet, small_recipe
from torch import Tensor

from duality.cli.main import main
from duality.data.corpus import prepare
from duality.data.packing import Sequences
from duality.methods import METHODS
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.models import model as run_model
from duality.networks import SIZES
from duality.noise import Noise, stratified_times
from duality.objectives import OBJECTIVES
from duality.protocols import Phase, Valid, Vocabulary
from duality.recipes.catalogue import recipe, recipe_names
from duality.recipes.recipe import Recipe
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.training import DISTILLATIONS
from duality.training.loop import StepRecord
from duality.training.metrics import read_metrics

# the class-conditional recipe needs labelled text: tests/denoisers/test_guidance.py
LAPTOP = [name for name in recipe_names() if "-laptop" in name and not recipe(name).data.labels]
PAPER = [name for name in recipe_names() if name.endswith(("-lm1b", "-owt", "-small"))]
NUM_TOKENS = 257
INTERIOR = ("schedule.steepness", "schedule.place", "schedule.height")  # of Plaid: trained on the loss's variance


def random_network(name: str, english: Path) -> tuple[Any, Recipe]:
    """A small network of a recipe in float64; zero-initialised weights are random too."""
    chosen = small_recipe(english, name=name)
    generator = torch.Generator().manual_seed(0)
    counts = torch.rand(NUM_TOKENS, generator=generator) * 100
    network = run_model.network(chosen, Vocabulary(NUM_TOKENS, counts=lambda: counts)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return network, chosen


@pytest.mark.parametrize("name", LAPTOP)
def test_every_laptop_recipe_trains_is_measured_and_samples(name: str, english: Path, tmp_path: Path) -> None:
    """50 steps on a real text: the loss falls, the measure is finite and better than uniform, the samples are text."""
    chosen = small_recipe(
        english,
        "training.steps=50",
        "training.save_every=50",
        "training.learning_rate=6e-3",
        "training.warmup=5",
        "data.tokenizer=bytes",
        name=name,
    )
    outcome = session.train(chosen, tmp_path / "run", report=quiet)
    assert outcome == session.Outcome(50, 0)
    model = run_model.load(tmp_path / "run", report=quiet)
    corpus = prepare(chosen.data.corpus, chosen.data.tokenizer)
    result = model.likelihood(Sequences(corpus.validation, chosen.data.length), num_draws=2)
    assert math.isfinite(result.nats_per_token)
    # Diffusion-LM regresses embeddings: its bound starts far above that of uniform tokens
    assert 1 < result.nats_per_token < (2 if name == "diffusion-lm-laptop" else 1.02) * math.log(NUM_TOKENS)
    tokens = model.generate(num=3, length=16, device="cpu")
    assert tokens.shape == (3, 16)
    assert tokens.dtype == torch.int64
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < NUM_TOKENS
    again = model.generate(num=3, length=16, batch_size=2)
    assert torch.equal(tokens, again)
    assert any("validation_nats" in row for row in read_metrics(tmp_path / "run"))


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_builds_without_memory(name: str) -> None:
    chosen = recipe(name)
    num_tokens = chosen.data.tokenizer.expected_vocab_size or 100
    with torch.device("meta"):
        network = run_model.network(chosen, Vocabulary(num_tokens), "meta")
    count = sum(value.numel() for value in network.parameters())
    assert all(value.is_meta for value in network.parameters())
    if name in PAPER:
        # 12 x 768: 85 M in the blocks, a little more with adaLN, plus two tables of K x 768, or one
        assert 90e6 < count < 175e6
    elif "molecules" in name:
        assert 0.2e6 < count < 1.5e6
    else:
        assert 0.5e6 < count < 2e6
    assert chosen.method.phases(num_tokens, 100)[-1].until == 100
    assert chosen.source.startswith("Table" if name in PAPER else ("laptop ", "molecule "))


def test_every_row_of_the_tables_has_a_paper_recipe_and_a_laptop_recipe() -> None:
    sources = [recipe(name).source for name in PAPER]
    for row in range(1, 12):
        assert any(f"Table 1, row {row}" == source.split(";")[0] for source in sources), row
        assert any(f"Table 1, row {row}" in recipe(name).source for name in LAPTOP), row
    for row in range(1, 9):
        assert f"Table 2, row {row}" in sources
    assert any("Table 2, row 6" in recipe(name).source for name in LAPTOP)  # Plaid is in Table 2 only


def rounds_of(name: str) -> tuple[Phase, ...]:
    """The phases of a distillation, for the first method that it suits."""
    kind = DISTILLATIONS[name]
    method = next(each for each in (Duo(), MDLM()) if kind.fits(each.process(NUM_TOKENS)))  # type: ignore[attr-defined]
    teacher = method.network(SIZES["nano"](), Vocabulary(NUM_TOKENS))
    phases: tuple[Phase, ...] = DISTILLATIONS[name]().phases(method, NUM_TOKENS, teacher)
    return phases


def test_everything_in_the_registries_is_tested() -> None:
    """Every method has a laptop recipe, and every objective and sampler a method: the tests here reach them all."""
    chosen = [recipe(name).method for name in LAPTOP]
    assert {type(method) for method in chosen} == set(METHODS.types())
    trained = {type(phase.objective) for method in chosen for phase in method.phases(NUM_TOKENS, 10)}
    measured = {type(method.measure(NUM_TOKENS)) for method in chosen}
    taught = {type(phase.objective) for kind in DISTILLATIONS for phase in rounds_of(kind)}
    assert set(OBJECTIVES.types()) <= trained | measured | taught
    # a sampler that is chosen by name only is tested by name: tests/samplers/test_few_steps.py, tests/denoisers
    assert {Ancestral, Analytic} <= {type(method.sampler(NUM_TOKENS)) for method in chosen}


def losses(network: Any, chosen: Recipe, x: Tensor, rows: slice, valid: Valid) -> list[Tensor]:
    """nats of every phase and of the measure, for some rows of a batch."""
    objectives = [phase.objective for phase in chosen.method.phases(NUM_TOKENS, 10)]
    noise = Noise.of(0, 0, torch.arange(rows.start, rows.stop))
    times, real = stratified_times(0, 0, len(x))[rows], None if valid is None else valid[rows]
    values = [each(network, x[rows], times, noise, real).nats for each in objectives]
    measure = chosen.method.measure(NUM_TOKENS)
    ends = measure.ends(network, x[rows], noise, real)
    return [*values, measure(network, x[rows], times, noise, real).nats, ends.prior, ends.reconstruction]


@pytest.mark.parametrize("name", LAPTOP)
def test_a_divided_batch_has_the_same_losses(name: str, english: Path) -> None:
    network, chosen = random_network(name, english)
    x = torch.randint(0, NUM_TOKENS, (4, 10), generator=torch.Generator().manual_seed(1))
    whole = losses(network, chosen, x, slice(0, 4), None)
    halves = [losses(network, chosen, x, rows, None) for rows in (slice(0, 2), slice(2, 4))]
    for index, value in enumerate(whole):
        assert torch.allclose(value, torch.cat([half[index] for half in halves]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", LAPTOP)
def test_padding_has_no_loss_and_no_effect(name: str, english: Path) -> None:
    """Losses and gradients of a padded batch do not depend on what the padding holds."""
    network, chosen = random_network(name, english)
    x = torch.randint(0, 200, (2, 10), generator=torch.Generator().manual_seed(2))
    valid = torch.arange(10)[None] < torch.tensor([[10], [6]])
    t, noise = torch.tensor([0.3, 0.7], dtype=torch.float64), Noise.of(0, 0, torch.arange(2))
    for phase in chosen.method.phases(NUM_TOKENS, 10):
        values = []
        for filler in (0, 137):
            network.zero_grad()
            loss = phase.objective(network, torch.where(valid, x, filler), t, noise, valid)
            torch.autograd.backward(loss.total)
            values.append((loss.nats, [p.grad.clone() for p in network.parameters() if p.grad is not None]))
        (a, a_grads), (b, b_grads) = values
        assert torch.allclose(a, b, atol=1e-12)
        assert (a[~valid] == 0).all()
        assert all(torch.allclose(g, h, atol=1e-10) for g, h in zip(a_grads, b_grads))
    first, second = (losses(network, chosen, torch.where(valid, x, fill), slice(0, 2), valid) for fill in (0, 137))
    for a, b in zip(first, second):
        assert torch.allclose(a[valid], b[valid], atol=1e-12)


@pytest.mark.parametrize("name", LAPTOP)
def test_a_padded_batch_has_the_losses_of_its_sequences_one_by_one(name: str, english: Path) -> None:
    """Losses of training and of measuring, and gradients: a corpus that is not packed is what its sentences are."""
    network, chosen = random_network(name, english)
    x = torch.randint(0, NUM_TOKENS, (3, 10), generator=torch.Generator().manual_seed(2))
    lengths = (10, 6, 3)
    valid = torch.arange(10)[None] < torch.tensor(lengths)[:, None]
    t, noise = torch.tensor([0.3, 0.7, 0.5], dtype=torch.float64), Noise.of(0, 0, torch.arange(3))

    def gradient(totals: list[Tensor]) -> list[Tensor]:
        network.zero_grad()
        torch.autograd.backward(sum(totals, torch.zeros((), dtype=torch.float64)))
        return [p.grad.clone() for p in network.parameters() if p.grad is not None]

    for phase in chosen.method.phases(NUM_TOKENS, 10):
        together = phase.objective(network, torch.where(valid, x, 0), t, noise, valid)
        alone = [
            phase.objective(network, x[[row], :count], t[[row]], noise.select(torch.tensor([row])))
            for row, count in enumerate(lengths)
        ]
        for row, count in enumerate(lengths):
            assert torch.allclose(together.nats[row, :count], alone[row].nats[0], rtol=1e-9, atol=1e-11), (phase, row)
        expected = gradient([each.total for each in alone])
        found = gradient([together.total])
        assert all(torch.allclose(g, h, rtol=1e-7, atol=1e-9) for g, h in zip(found, expected, strict=True))
    padded = losses(network, chosen, torch.where(valid, x, 0), slice(0, 3), valid)
    for row, count in enumerate(lengths):
        single = losses(network, chosen, x[:, :count], slice(row, row + 1), None)
        for whole, own in zip(padded, single, strict=True):
            assert torch.allclose(whole[row, :count], own[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", LAPTOP)
def test_the_gradient_of_every_objective_is_that_of_its_total(name: str, english: Path) -> None:
    """By finite differences, except for parameters with another gradient by design (Plaid's schedule)."""
    network, chosen = random_network(name, english)
    x, t = torch.randint(0, NUM_TOKENS, (4, 9), generator=torch.Generator().manual_seed(3)), stratified_times(0, 0, 4)
    noise = Noise.of(0, 0, torch.arange(4))
    trained = {n: p for n, p in network.named_parameters() if p.requires_grad and not n.startswith(INTERIOR)}
    for phase in chosen.method.phases(NUM_TOKENS, 10):
        network.zero_grad()
        loss = phase.objective(network, x, t, noise)
        assert not loss.nats.requires_grad
        assert torch.isfinite(loss.nats).all()
        generator = torch.Generator().manual_seed(4)
        direction = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in trained.values()]
        torch.autograd.backward(loss.total)
        slope = sum(float((p.grad * d).sum()) for p, d in zip(trained.values(), direction) if p.grad is not None)
        values = []
        for size in (1e-6, -1e-6):
            with torch.no_grad():
                for p, d in zip(trained.values(), direction):
                    p.add_(size * d)
                values.append(float(phase.objective(network, x, t, noise).total))
                for p, d in zip(trained.values(), direction):
                    p.sub_(size * d)
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-4)


def test_resuming_any_model_is_exact(english: Path, tmp_path: Path) -> None:
    """Also for a model with weights that are not trained."""
    for name in ("mdlm-laptop", "ar-laptop", "plaid-laptop", "diffusion-bert-laptop"):
        whole, halved = (small_recipe(english, "training.steps=10", name=name) for _ in range(2))
        session.train(whole, tmp_path / name / "whole", report=quiet)

        class Stop(Exception):
            pass

        def stop(record: StepRecord) -> None:
            if record.step == 7:
                raise Stop

        with pytest.raises(Stop):
            session.train(halved, tmp_path / name / "halved", report=quiet, watch=stop)
        session.train(halved, tmp_path / name / "halved", resume=True, report=quiet)
        a, b = (
            dict(run_model.load(tmp_path / name / part, report=quiet).denoiser.named_parameters())
            for part in ("whole", "halved")
        )
        assert all(torch.equal(a[key], b[key]) for key in a), name


def test_recipes_are_a_table_with_parameters_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= len(recipe_names()) + 1
    for name in recipe_names():
        line = next(line for line in lines if line.split()[:1] == [name])
        assert " M " in line
        assert "Table" in line or "laptop scale" in line


def test_the_json_of_a_measurement_names_its_kind(
    english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, kind in (("ar-laptop", "exact"), ("mdlm-laptop", "bound"), ("bert-mouth-laptop", "pseudo-likelihood")):
        session.train(small_recipe(english, "training.steps=2", name=name), tmp_path / name, report=quiet)
        assert main(["eval", str(tmp_path / name), "--json", "--limit", "4"]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == kind
    assert main(["eval", str(tmp_path / "ar-laptop"), "--limit", "4"]) == 0
    assert "PPL =" in capsys.readouterr().out
