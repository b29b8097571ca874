"""Registries: names without torch, and a dummy of each kind that is registered in one place and then works by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from support import session
from support.mixer import Mixer
from support.runs import quiet, small_recipe
from support.unigram import Unigram
from torch import Tensor

import duality
from duality.diffusion import GAUSSIAN_SCHEDULES, PROCESSES, SCHEDULES
from duality.diffusion.schedules import LinearLogSnr
from duality.methods import METHODS
from duality.methods.udlm import UDLM
from duality.networks import BACKBONES, SIZES
from duality.noise import Noise
from duality.objectives import OBJECTIVES
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.protocols import AnyDenoiser, Loss, Network, Phase, Schedule, Valid
from duality.recipes.catalogue import _components, from_json, recipe, to_json
from duality.registry import Registry
from duality.runs.trackers import TRACKERS
from duality.samplers import GRIDS, SAMPLERS
from duality.samplers.ancestral import Ancestral
from duality.tokenizers import TOKENIZERS
from duality.tokenizers.specs import Characters
from duality.training import DISTILLATIONS
from duality.training.distillation import DCD

REGISTRIES = {
    "duality.diffusion:PROCESSES": PROCESSES,
    "duality.diffusion:SCHEDULES": SCHEDULES,
    "duality.diffusion:GAUSSIAN_SCHEDULES": GAUSSIAN_SCHEDULES,
    "duality.networks:BACKBONES": BACKBONES,
    "duality.networks:SIZES": SIZES,
    "duality.objectives:OBJECTIVES": OBJECTIVES,
    "duality.samplers:SAMPLERS": SAMPLERS,
    "duality.samplers:GRIDS": GRIDS,
    "duality.methods:METHODS": METHODS,
    "duality.tokenizers:TOKENIZERS": TOKENIZERS,
    "duality.training:DISTILLATIONS": DISTILLATIONS,
    "duality.runs.trackers:TRACKERS": TRACKERS,
}


def test_names_are_known_without_torch() -> None:
    lines = [f"from {place.partition(':')[0]} import {place.partition(':')[2]} as r; list(r)" for place in REGISTRIES]
    script = "\n".join(["import sys", *lines, "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"])
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=REGISTRIES)
def test_every_entry_exists_and_unknown_names_get_a_suggestion(registry: Registry) -> None:
    assert all(callable(registry[name]) for name in registry)
    name = next(iter(registry))
    with pytest.raises(ValueError, match=f"no {registry.kind} '{name}x': did you mean"):
        registry[f"{name}x"]
    with pytest.raises(ValueError, match=r"already: choose another name"):
        registry.register(name, registry[name])


def test_names_in_json_are_the_names_of_classes() -> None:
    for registry in (METHODS, SCHEDULES, GAUSSIAN_SCHEDULES, BACKBONES):
        assert all(registry[name].__name__ == name for name in registry)


# --- a dummy of each kind


@dataclass(frozen=True)
class Slow:
    """A schedule without any option: alpha = 1 - (1 - 1e-3) t^3."""

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - 1e-3) * t.double() ** 3

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -3 * (1 - 1e-3) * t.double() ** 2

    def time(self, alpha: Tensor) -> Tensor:
        return ((1 - alpha.double()) / (1 - 1e-3)) ** (1 / 3)


@dataclass(frozen=True)
class Steeper(LinearLogSnr):
    """A Gaussian schedule with another name."""


@dataclass(frozen=True)
class Squared:
    """A grid: the squares of the times of a linear grid."""

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        return torch.linspace(1, 0, steps + 1, dtype=torch.float64) ** 2


@dataclass(frozen=True)
class Counted(Ancestral):
    """A sampler that records the levels of its steps."""

    def step(self, denoiser: AnyDenoiser, state: Tensor, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Tensor:
        LEVELS.append(float(alpha_t[0]))
        return super().step(denoiser, state, alpha_t, alpha_s, noise)


LEVELS: list[float] = []


@dataclass(frozen=True)
class Doubled:
    """An objective: twice the bound."""

    bound: ContinuousTimeBound

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        loss = self.bound(denoiser, x, t, noise, valid, dropout)
        return Loss(2 * loss.total, 2 * loss.nats)


@dataclass(frozen=True)
class DoubledUDLM(UDLM):
    """A method that trains with an objective by name."""

    objective: str = "doubled"

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        bound = ContinuousTimeBound(self.process(num_tokens), self.training_schedule)
        return (Phase(self.objective, OBJECTIVES[self.objective](bound), steps),)


@dataclass(frozen=True)
class ShortDCD(DCD):
    """A distillation with other defaults."""

    rounds: int = 1


@dataclass(frozen=True)
class Letters(Characters):
    """A tokenizer with another name."""


@pytest.fixture(autouse=True)
def dummies() -> Iterator[None]:
    """Registers each dummy, in one line each."""
    with ExitStack() as stack:
        for registry, name, entry in (
            (PROCESSES, "unigram", Unigram),
            (SCHEDULES, "Slow", Slow),
            (GAUSSIAN_SCHEDULES, "Steeper", Steeper),
            (GRIDS, "squared", Squared),
            (SAMPLERS, "counted", Counted),
            (OBJECTIVES, "doubled", Doubled),
            (METHODS, "DoubledUDLM", DoubledUDLM),
            (BACKBONES, "Mixer", Mixer),
            (DISTILLATIONS, "short", ShortDCD),
            (TOKENIZERS, "letters", Letters),
        ):
            stack.enter_context(registry.extended(name, entry))
        yield


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ("duo-laptop", ("method.training_schedule=Slow", "method.gaussian_schedule=Steeper", "data.tokenizer=letters")),
        ("duo-laptop", ("backbone=Mixer", "backbone.width=16")),
        ("mdlm-laptop", ("backbone=Mixer",)),
        ("sedd-uniform-laptop", ("backbone=Mixer", "method.noise=unigram")),
        ("d3pm-uniform-laptop", ("method.noise=unigram", "method.num_steps=20")),
        ("udlm-laptop", ("method=DoubledUDLM",)),
    ],
)
def test_a_dummy_trains_is_measured_saved_and_sampled_by_name(
    base: str, changes: tuple[str, ...], english: Path, tmp_path: Path
) -> None:
    first = [change for change in changes if change.partition("=")[0] in ("backbone", "method")]
    small = [] if any(change.startswith("backbone") for change in changes) else ["backbone=nano", "backbone.width=32"]
    settings = ("training.steps=6", "training.save_every=6", "training.eval_every=0", "training.batch_size=8")
    rest = [change for change in changes if change not in first]
    made = recipe(
        base, (f"data.corpus={english}", "data.tokenizer=bytes", "data.length=32", *first, *small, *rest, *settings)
    )
    assert from_json(to_json(made)) == made
    session.train(made, tmp_path / "run", report=quiet)
    model = duality.load(tmp_path / "run")
    assert model.recipe == made
    LEVELS.clear()
    process = made.method.process(model.tokenizer.vocab_size)
    by_name = process is not None and base != "sedd-uniform-laptop"
    sampler = "counted" if by_name else "own"
    samples = model.sample(num=2, steps=4, sampler=sampler, grid="squared")
    assert len(samples) == 2
    assert all(len(sample.tokens) == 32 for sample in samples)
    if by_name:  # three steps and the last one, at the levels of the grid
        grid = Squared()(made.method.sampling_schedule(), 4)
        levels = made.method.sampling_schedule().alpha(grid[:4]).tolist()
        assert pytest.approx(levels, abs=1e-12) == LEVELS


def test_a_distillation_by_name(english: Path, tmp_path: Path) -> None:
    base = small_recipe(english, "training.steps=4")
    session.train(base, tmp_path / "base", report=quiet)
    model = duality.distill(tmp_path / "base", method="short", round_steps=3, out=tmp_path / "short")
    assert type(model.recipe.distillation) is ShortDCD
    assert model.step == 3


def test_the_second_backbone_is_a_network_and_refuses_what_it_does_not_have(english: Path, tmp_path: Path) -> None:
    assert isinstance(Mixer().build(7), Network)
    assert "Mixer" in _components()
    made = recipe("ar-laptop", (f"data.corpus={english}", "data.tokenizer=bytes", "backbone=Mixer"))
    with pytest.raises(ValueError, match="choose another backbone"):
        session.train(made, tmp_path / "run", report=quiet)
    compiled = replace(recipe("duo-laptop", (f"data.corpus={english}", "data.tokenizer=bytes", "backbone=Mixer")))
    compiled = replace(compiled, training=replace(compiled.training, recompute=True))
    with pytest.raises(ValueError, match=r"no training.recompute"):
        session.train(compiled, tmp_path / "other", report=quiet)
