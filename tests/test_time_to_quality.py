"""Time to quality: equal batches and steps for all, turns, and a plain implementation with the library's loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.runs import quiet

from benchmarks.models import network_of
from duality.diffusion.schedules import Polynomial
from duality.methods.duo import Duo
from duality.networks.dit import DiT
from duality.noise import Noise, stratified_times
from duality.recipes.corpus import prepare_corpus
from experiments import time_to_quality
from experiments.time_to_quality import (
    DENSE,
    NAMES,
    Contestant,
    DenseObjective,
    Point,
    Settings,
    main,
    seconds_to,
)


@pytest.fixture
def small(english: Path) -> tuple[str, ...]:
    return (
        f"data.corpus={english}",
        "data.tokenizer=bytes",
        "data.length=32",
        "backbone=nano",
        "backbone.width=32",
        "training.batch_size=4",
        "training.warmup=2",
    )


def test_a_small_race(small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--steps", "6", "--every", "4", "--block", "2", "--limit", "4", "--draws", "1", "--set", *small]
    main([str(tmp_path / "out"), *flags])
    found = json.loads((tmp_path / "out" / "time_to_quality.json").read_text())
    assert [curve["name"] for curve in found["curves"]] == list(NAMES)
    for curve in found["curves"]:
        assert [point["step"] for point in curve["points"]] == [4, 6]
        first, last = (point["cpu_seconds"] for point in curve["points"])
        assert 0 < first < last
        assert curve["points"][0]["kind"] == ("exact" if curve["name"] == "AR" else "bound")
    sizes = {curve["name"]: curve["parameters"] for curve in found["curves"]}
    assert sizes["Duo"] == sizes[DENSE]
    assert (tmp_path / "out" / "time_to_quality.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert printed.startswith("6 steps of each of Duo, Duo (dense), MDLM, AR")
    assert all(f"| {name} | 6 |" in printed for name in NAMES)


def test_contestants_begin_alike_and_read_the_same_batches(small: tuple[str, ...]) -> None:
    settings = Settings(assignments=small)
    recipes = {name: settings.recipe(name, 8) for name in NAMES}
    corpus = prepare_corpus(recipes["Duo"], quiet)
    started = {name: Contestant.started(name, recipe, corpus) for name, recipe in recipes.items()}
    plain, dense = (dict(started[name].state.model.named_parameters()) for name in ("Duo", DENSE))
    assert all(torch.equal(plain[name], dense[name]) for name in plain)
    for each in started.values():
        assert torch.equal(each.loader.batch(3).ids, started["Duo"].loader.batch(3).ids)
    assert [phase.until for phase in started[DENSE].phases] == [phase.until for phase in started["Duo"].phases]
    assert all(isinstance(phase.objective, DenseObjective) for phase in started[DENSE].phases)


def test_the_plain_objectives_have_the_loss_of_the_library() -> None:
    """Both phases, over many draws; the level at which float32 has no digits left is included."""
    states = 29
    denoiser = network_of(Duo(), DiT(width=16, depth=1, heads=2, time_width=8, dropout=0.0), states)
    x = Noise.of(5, 0, torch.arange(64)).integers("x", states, 16)
    for phase in Duo(tau=0.05, training_schedule=Polynomial()).phases(states, 2):
        means = []
        with torch.no_grad():
            for objective in (phase.objective, DenseObjective(phase.objective)):
                found = []
                for step in range(30):
                    t = stratified_times(1, step, 64)
                    t[0] = 1e-9
                    found.append(objective(denoiser, x, t, Noise.of(2, step, torch.arange(64))).nats.mean())
                means.append(torch.stack(found))
        assert means[1].isfinite().all()
        gap = means[0].mean() - means[1].mean()
        assert abs(float(gap / ((means[0].var() + means[1].var()) / 30).sqrt())) < 4, phase.name


def test_contestants_take_turns(small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of steps each; measuring comes after all of them, and is not counted."""
    calls: list[tuple[str, str]] = []

    def train(self: Contestant, steps: int) -> None:
        calls.append((self.name, f"train {steps}"))

    def measure(self: Contestant, *_: object) -> None:
        calls.append((self.name, "measure"))

    monkeypatch.setattr(Contestant, "train", train)
    monkeypatch.setattr(Contestant, "measure", measure)
    time_to_quality.race(4, Settings(every=4, block=2, assignments=small), lambda racers: None)
    expected = [(name, "train 2") for _ in range(2) for name in NAMES] + [(name, "measure") for name in NAMES]
    assert calls == expected


def test_seconds_until_a_value_is_reached() -> None:
    points = [Point(step, seconds, nats, 0.0, "bound") for step, seconds, nats in ((1, 2.0, 6.0), (2, 4.0, 5.0))]
    assert seconds_to(points, 5.5) == pytest.approx(3.0)
    assert seconds_to(points, 5.0) == pytest.approx(4.0)
    assert seconds_to(points, 7.0) == pytest.approx(2.0)
    assert seconds_to(points, 4.9) is None


def test_what_cannot_be_raced_is_refused(small: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="a multiple of block"):
        Settings(every=15, block=10)
    with pytest.raises(ValueError, match="must be positive"):
        time_to_quality.steps_within(0.0, Settings(assignments=small))
    few = Settings(every=1000, block=2, limit=2, draws=1, assignments=small)
    with pytest.raises(ValueError, match="give more minutes"):
        time_to_quality.steps_within(0.001, few)
