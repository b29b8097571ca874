"""The objectives of `duality variance` by name, and the paired draws of window and tau."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.runs import quiet
from torch import Tensor, nn

from benchmarks.models import network_of
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import Dual, LinearVariance, LogLinear, Polynomial
from duality.methods.base import last_level
from duality.methods.duo import Duo
from duality.models.model import load
from duality.networks.dit import DiT
from duality.noise import Noise, stratified_times
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.curriculum import TemperedBound
from duality.papers.duo.variance.objectives import (
    _ABSORBING_DEFAULT,
    _UNIFORM_DEFAULT,
    DenseUniform,
    DiscreteTimes,
    PairedBound,
    _parse,
    objectives_of,
)
from duality.papers.duo.variance.study import _is_infinite, _window_of
from duality.protocols import Objective

STATES = 23


def double_network() -> nn.Module:
    return network_of(Duo(), DiT(width=16, depth=1, heads=2, time_width=8, dropout=0.0), STATES).double()


def loss_and_gradient(
    objective: Objective, denoiser: nn.Module, seed: int = 0, batch: int = 8
) -> tuple[Tensor, Tensor]:
    noise, t = Noise.of(seed, 0, torch.arange(batch)), stratified_times(seed, 0, batch)
    loss = objective(denoiser, Noise.of(9, 0, torch.arange(batch)).integers("x", STATES, 6), t, noise)
    found = torch.autograd.grad(loss.total, list(denoiser.parameters()))
    return loss.nats, torch.cat([each.flatten() for each in found])


def test_the_window_is_the_limit_of_the_curriculum() -> None:
    """In value and in gradient, on the same latents, in float64; and at tau = 0.03 it is not."""
    schedule, denoiser = Dual(STATES), double_network()
    window, near, far = (loss_and_gradient(PairedBound(schedule, tau), denoiser) for tau in (0.0, 1e-9, 0.03))
    for limit, found in zip(window, near):
        torch.testing.assert_close(found, limit, rtol=1e-9, atol=1e-9)
    assert float((far[0] - window[0]).abs().max()) > 1e-3


def test_the_paired_curriculum_is_that_of_training() -> None:
    """A small vocabulary is drawn whole: the same latents, loss and gradient as the training's objective."""
    schedule, denoiser = Dual(STATES), double_network()
    for tau in (0.3, 1.0):
        assert TemperedBound(schedule, tau).num_kept == PairedBound(schedule, tau).num_drawn == STATES - 1
        own, paired = (
            loss_and_gradient(each, denoiser) for each in (TemperedBound(schedule, tau), PairedBound(schedule, tau))
        )
        for expected, found in zip(own, paired):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_fewer_entries_read_than_drawn_have_the_law_of_training() -> None:
    """Mean loss over many draws, with 600 tokens, where the curriculum keeps 4 entries of the 32 that are drawn."""
    paired = PairedBound(Dual(600), 0.01)
    assert paired.num_kept == TemperedBound(Dual(600), 0.01).num_kept < paired.num_drawn == 32
    denoiser = network_of(Duo(), DiT(width=16, depth=1, heads=2, time_width=8, dropout=0.0), 600)
    x, t = torch.arange(64)[:, None].expand(64, 16) * 7, stratified_times(0, 0, 64)
    means = []
    with torch.no_grad():
        for objective in (TemperedBound(Dual(600), 0.01), paired, replace(paired, tau=0.0)):
            found = [objective(denoiser, x, t, Noise.of(1, step, torch.arange(64))).nats.mean() for step in range(20)]
            means.append(torch.stack(found))
    exact = ContinuousTimeBound(Uniform(600), Dual(600))
    with torch.no_grad():
        found = [exact(denoiser, x, t, Noise.of(2, step, torch.arange(64))).nats.mean() for step in range(20)]
    means.append(torch.stack(found))
    for one, other in ((0, 1), (2, 3)):
        gap = means[one].mean() - means[other].mean()
        assert abs(float(gap / ((means[one].var() + means[other].var()) / 20).sqrt())) < 4


@pytest.mark.parametrize("schedule", [LogLinear(), Polynomial()], ids=str)
def test_discrete_times_within_the_window(schedule: LogLinear | Polynomial) -> None:
    dual = Dual(STATES, DiscreteTimes(schedule, STATES), 0.1, 0.9)
    first, last = schedule.time(torch.tensor([0.9, 0.1]))
    t = torch.linspace(0.01, 0.99, 9, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(dual.alpha(t.detach()), schedule.alpha(first + (last - first) * t.detach()))
    slope = schedule.alpha_prime(first + (last - first) * t.detach()) * (last - first)
    torch.testing.assert_close(dual.alpha_prime(t.detach()), slope)


def test_names_stand_for_objectives(trained: Path, others: dict[str, Path]) -> None:
    model = load(trained, quiet)
    names = ("plain", "plain/cosine", "window/linear-signal", "tau=0.01/polynomial", "udlm/log-linear", "own")
    found = objectives_of(model, names, (0.2, 0.8))
    assert list(found) == list(names)
    own = found["own"]
    assert isinstance(own, ContinuousTimeBound)
    assert found["plain"] == own
    tempered, dense = found["tau=0.01/polynomial"], found["udlm/log-linear"]
    assert isinstance(tempered, PairedBound)
    assert tempered.tau == 0.01
    states = model.tokenizer.vocab_size
    assert tempered.schedule.gaussian_schedule == DiscreteTimes(Polynomial(eps=last_level(own.schedule)), states)
    assert _window_of(tempered) == (0.2, 0.8)
    assert isinstance(dense, ContinuousTimeBound)
    assert dense == ContinuousTimeBound(DenseUniform(states), LogLinear(eps=last_level(own.schedule)))
    method = model.recipe.method
    assert isinstance(method, Duo)
    assert _window_of(objectives_of(model, ("window",))["window"]) == (method.alpha_min, method.alpha_max)
    assert tuple(objectives_of(model)) == _UNIFORM_DEFAULT
    masked = load(others["mdlm"], quiet)
    assert tuple(objectives_of(masked)) == _ABSORBING_DEFAULT
    absorbing = objectives_of(masked, ("mdlm/log-linear",))["mdlm/log-linear"]
    assert isinstance(absorbing, ContinuousTimeBound)
    assert absorbing.schedule == LogLinear(eps=0.0)
    for other in ("ar", "sedd-uniform"):
        assert tuple(objectives_of(load(others[other], quiet))) == ("own",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plan", "no objective 'plan': did you mean plain"),
        ("tau=", "tau must be a positive number"),
        ("tau=0", "its limit 0 is 'window'"),
        ("plain/quadratic", "has the times 'quadratic': they are log-linear"),
        ("own/cosine", "'own' has its own"),
    ],
)
def test_a_name_without_meaning_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _parse(name)


def test_an_objective_that_does_not_fit_the_run_is_refused(trained: Path, others: dict[str, Path]) -> None:
    cases = [
        (trained, "mdlm", "is for absorbing noise"),
        (trained, "plain/linear-signal", "is a Gaussian schedule"),
        (others["mdlm"], "window", "is for uniform noise"),
        (others["mdlm"], "udlm", "is for uniform noise"),
        (others["ar"], "plain", "use 'own'"),
        (others["sedd-uniform"], "tau=0.01", "use 'own'"),
    ]
    for run, name, message in cases:
        with pytest.raises(ValueError, match=message):
            objectives_of(load(run, quiet), (name,))
    with pytest.raises(ValueError, match="plain stands twice"):
        objectives_of(load(trained, quiet), ("plain", "plain"))
    with pytest.raises(ValueError, match="must satisfy 0 < alpha_min < alpha_max < 1"):
        objectives_of(load(trained, quiet), ("window",), (0.9, 0.1))


def test_times_with_infinite_variance_are_known() -> None:
    process = Uniform(STATES)
    assert _is_infinite(ContinuousTimeBound(process, LogLinear()))
    assert not _is_infinite(ContinuousTimeBound(process, Polynomial()))
    assert not _is_infinite(ContinuousTimeBound(process, Polynomial(power=1.5)))
    assert not _is_infinite(ContinuousTimeBound(process, Dual(STATES, LinearVariance())))
    assert not _is_infinite(PairedBound(Dual(STATES), 0.0))
