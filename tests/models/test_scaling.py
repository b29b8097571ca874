"""`duality plan`: its figures are those of the network itself, and its memory is what a training takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.runs import small_recipe

from benchmarks.memory import Live
from duality.cli.main import main
from duality.data.loader import Loader
from duality.models import plan as scaling
from duality.models.cost import count_training
from duality.models.roofline import GPUS
from duality.recipes.catalogue import recipe, recipe_names
from duality.recipes.corpus import make_sequences, prepare_corpus
from duality.recipes.derive import derive_distillation, method_phases
from duality.recipes.recipe import Recipe
from duality.runs.session import _log_row
from duality.runs.start import make_state
from duality.training.loop import StepRecord, take_step

CPU = torch.device("cpu")
WIDE = ("backbone.width=128", "backbone.depth=3", "backbone.heads=4", "data.length=128", "training.batch_size=32")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("duo-laptop", ()),
        ("mdlm-laptop", ("training.micro_batch=8",)),
        ("ar-laptop", ("backbone.dropout=0.1",)),
        ("sedd-absorb-laptop", ("backbone.conv=0",)),
        ("duo-laptop", ("backbone.mlp_ratio=8", "training.batch_size=16", "training.micro_batch=4")),
        ("duo-laptop", ("training.freeze=embedding,blocks.0-1",)),
    ],
)
def test_the_memory_is_what_a_step_takes(name: str, settings: tuple[str, ...], english: Path) -> None:
    """All tensors that are alive at a time, within 15 %."""
    chosen = small_recipe(english, *WIDE, *settings, name=name)
    corpus = prepare_corpus(chosen)
    state = make_state(chosen, corpus, CPU)
    rows = make_sequences(chosen.data, corpus.train, corpus.tokenizer)
    loader = Loader(rows, chosen.training.batch_size, chosen.training.seed)
    phases = method_phases(chosen, corpus.tokenizer.vocab_size)
    take_step(state, loader, phases, chosen.training)  # which makes the optimizer's moments
    live = Live([tensor for group in state.groups().values() for tensor in group.values()])
    with live:
        take_step(state, loader, phases, chosen.training)
    training = chosen.training
    at_a_time = training.micro_batch or training.batch_size
    planned = scaling._estimate(chosen, scaling.Sizes.of(chosen, CPU), "single", 1, 1, at_a_time, CPU)
    assert planned.memory == pytest.approx(live.most, rel=0.15)


@pytest.mark.parametrize("name", ["duo-lm1b", "mdlm-lm1b", "ar-lm1b", "plaid-lm1b", "sedd-uniform-lm1b"])
def test_the_sizes_are_those_of_the_network(name: str) -> None:
    sizes = scaling.Sizes.of(recipe(name), CPU)
    assert sizes.parameters > 90e6
    assert sizes.depth == 12
    assert sizes.width == 768
    assert 0 < sizes.in_blocks < sizes.parameters
    assert sizes.largest_block * 12 == sizes.in_blocks
    assert sizes.row > 128 * 768 * 4 * 12


def test_bytes_over_the_network() -> None:
    sizes = scaling.Sizes(100, 80, 10, 5, 5, 4, 8, 10, 1.0, 0.0, 100, 80)
    gpu = torch.device("cuda")

    def sent(strategy: scaling.Strategy, devices: int, shard: int, device: torch.device, times: int = 1) -> float:
        chosen = recipe("duo-laptop", (f"training.batch_size={devices * times}",))
        if times > 1:
            chosen = derive_distillation(chosen, "dcd", chosen.training.steps)
        return scaling._estimate(chosen, sizes, strategy, devices, shard, 1, device).sent

    assert sent("single", 1, 1, gpu) == 0
    assert sent("ddp", 4, 1, gpu) == pytest.approx(2 * 3 / 4 * 400)
    assert sent("fsdp", 4, 4, gpu) == pytest.approx(3 / 4 * (400 + 320 + 400))
    assert sent("fsdp", 4, 4, CPU) == pytest.approx(3 / 4 * (400 + 320 + 800))
    assert sent("fsdp", 4, 4, gpu, 2) == pytest.approx(3 / 4 * (2 * (800 + 320) + 400))
    assert sent("fsdp", 8, 4, gpu) == pytest.approx(3 / 4 * (400 + 320 + 400) + 400 / 4)


def test_a_validation_puts_all_weights_together() -> None:
    """Weights, moments and average are divided, the averaged weights of a validation are not; gradients are gone."""
    sizes = scaling.Sizes(1000, 800, 10, 5, 5, 4, 80, 10, 1.0, 0.0, 1000, 800)
    chosen = recipe("duo-laptop", ("training.batch_size=64",))
    alone = scaling._estimate(chosen, sizes, "single", 1, 1, 1, CPU)
    ddp = scaling._estimate(chosen, sizes, "ddp", 8, 1, 1, CPU)
    fsdp = scaling._estimate(chosen, sizes, "fsdp", 8, 8, 1, CPU)
    assert (alone.validation, ddp.validation) == (20_000, 20_000)
    assert fsdp.validation == 4 * 4000 / 8 + 4000
    many = scaling._estimate(chosen, replace(sizes, row=0.0, largest_block=1, in_blocks=999), "fsdp", 64, 64, 1, CPU)
    assert many.memory >= many.validation > 4000


def test_operations_of_a_token() -> None:
    chosen = recipe("duo-lm1b")
    sizes = scaling.Sizes.of(chosen, CPU)
    plain = sizes.count_operations(chosen)
    assert plain == pytest.approx(6 * (sizes.parameters - sizes.embedding) + 12 * 128 * 768 * 12)
    again = replace(chosen, training=replace(chosen.training, recompute=True))
    assert sizes.count_operations(again) == pytest.approx(4 / 3 * plain)
    taught = derive_distillation(chosen, "dcd", chosen.training.steps)
    assert sizes.count_operations(taught) == pytest.approx(4 / 3 * plain)
    assert taught.training.batch_size == 128


SMALL = ("backbone=nano", "data.length=32", "data.tokenizer=bytes", "training.batch_size=64")


def fit_of(chosen: Recipe, sizes: scaling.Sizes, devices: int, rows: int) -> scaling.Fit:
    strategy: scaling.Strategy = "single" if devices == 1 else "ddp"
    return scaling._estimate(chosen, sizes, strategy, devices, 1, rows, torch.device("cuda"))


def test_the_time_is_the_counted_one_or_the_measured_one() -> None:
    chosen = recipe("duo-laptop", (*SMALL, "training.steps=1000", "method.curriculum=0.25"))
    sizes = scaling.Sizes.of(chosen, CPU)
    fit = fit_of(chosen, sizes, 2, 32)
    speed = scaling.find_speed(chosen, sizes, fit, GPUS["A100"])
    assert speed is not None
    phases = {phase.name: phase.seconds(GPUS["A100"]) for phase in count_training(chosen, 32)}
    assert speed.phases == phases
    assert speed.step_seconds == pytest.approx(0.25 * phases["curriculum"] + 0.75 * phases["bound"])
    assert speed.tokens_per_second == pytest.approx(64 * 32 / speed.step_seconds)
    assert speed.days == pytest.approx(1000 * speed.step_seconds / 86_400)
    assert speed.mfu == pytest.approx(sizes.count_operations(chosen) * speed.tokens_per_second / (2 * 312e12))
    measured = scaling.find_speed(chosen, sizes, fit, GPUS["A100"], 0.5)
    assert measured is not None
    assert (measured.step_seconds, measured.phases) == (0.5, {})
    assert measured.tokens_per_second == pytest.approx(64 * 32 / 0.5)
    assert scaling.find_speed(chosen, sizes, fit, None) is None
    elsewhere = scaling.find_speed(chosen, sizes, fit, None, 0.5)
    assert elsewhere is not None
    assert (elsewhere.mfu, elsewhere.days) == (None, measured.days)


def test_every_micro_batch_takes_time() -> None:
    chosen = recipe("ar-laptop", SMALL)
    sizes = scaling.Sizes.of(chosen, CPU)
    found = [scaling.find_speed(chosen, sizes, fit_of(chosen, sizes, 1, rows), GPUS["H100"]) for rows in (64, 32, 16)]
    times = [each.step_seconds for each in found if each is not None]
    assert times[0] < times[1] < times[2]


def test_what_does_not_fit_is_divided_or_recomputed(capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*arguments: str) -> dict[str, object]:
        assert main(["plan", "duo-owt", "--json", *arguments]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    small = planned("--devices", "8", "--memory", "4GB", "--measured", "1")
    assert [row["fits"] for row in small["strategies"]] == [False, True]  # type: ignore[attr-defined]
    large = planned("--devices", "8", "--memory", "80GB", "--measured", "0.21")
    assert all(row["fits"] for row in large["strategies"])  # type: ignore[attr-defined]
    assert large["speed"]["days"] == pytest.approx(1_000_000 * 0.21 / 86_400)  # type: ignore[index]
    assert large["gpu"] == "H100"
    on_cpu = ("--kind", "cpu", "--memory", "1GB", "--set", "training.batch_size=8")
    assert planned(*on_cpu)["smallest"] is None
    assert planned(*on_cpu)["speed"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--devices", "7"], "--devices 7: a batch of 512 can be divided over 1, 2, 4, 8, 16, 32, 64, 128, 256, 512"),
        (["--memory", "80"], "--memory '80': write a number and a unit"),
        (["--memory", "-3GB"], "write a number and a unit"),
        (["--gpu", "Z9"], "--gpu 'Z9': choose from H200, H100, A100, L40S, L4, 4090, 3090"),
        (["--measured", "0"], "--measured 0.0: it is the time of a step in seconds"),
        (["--kind", "cpu"], "--kind cpu needs the memory of a device: --memory 64GB"),
        (["--distill", "sdtt"], "use --method dcd"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "duo-owt", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_every_recipe_can_be_planned() -> None:
    for name in (each for each in recipe_names() if each.endswith("-lm1b")):  # one for each method
        fit = scaling._estimate(recipe(name), scaling.Sizes.of(recipe(name), CPU), "ddp", 2, 1, 1, CPU)
        assert fit.memory > 0, name


def test_the_share_of_the_peak_is_logged_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    record = StepRecord(10, "bound", 5.0, 1e-3, 1.0, 100, 5.0)
    row = _log_row(record, 0, 2.0, (1e9, 1e12))
    assert row["mfu"] == 0.5
    assert "mfu" not in _log_row(record, 0, 2.0, None)
    assert scaling.operations_per_second(recipe("duo-lm1b"), CPU) is None
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    for name, peak in (("NVIDIA A100-SXM4-80GB", 312e12), ("a device that nobody knows", None)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        found = scaling.operations_per_second(recipe("duo-lm1b"), torch.device("cuda"))
        assert (found and found[1]) == peak
