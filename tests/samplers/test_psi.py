"""Psi samplers: their routes are the formula, their laws are exact, and kappa = 1 is ancestral sampling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.oracles import (
    LENGTH,
    OracleScore,
    SingleToken,
    absorbing_toy,
    all_states,
    kernel_of,
    law_of,
    total_variation,
    uniform_toy,
)
from torch import Tensor

from duality.diffusion import PROCESSES, posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.noise import Noise
from duality.protocols import Denoiser, Process
from duality.samplers import GRIDS
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import generate
from duality.samplers.grids import LINEAR, LinearConstantLinear
from duality.samplers.psi import Psi, Rule, _kappa

RULES: tuple[Rule, ...] = get_args(Rule)
Toy = Callable[[], tuple[Tensor, Process, Denoiser]]


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def dense(p: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, kappa: Tensor, prior: Tensor) -> Tensor:
    """kappa q_s + (1 - kappa) F_s(q_0), as in the formula."""
    q_s = posterior.posterior(p, z, alpha_t, alpha_s, prior)
    q_0 = posterior.posterior(p, z, alpha_t, torch.ones_like(alpha_s), prior)
    return kappa[..., None] * q_s + (1 - kappa[..., None]) * posterior.marginal(q_0, alpha_s, prior)


@pytest.mark.parametrize("kind", PROCESSES.types())
def test_routes_mix_to_the_formula(kind: type) -> None:
    process, generator = kind(7), torch.Generator().manual_seed(0)
    logits = torch.randn(300, 7, generator=generator, dtype=torch.float64)
    z = torch.randint(0, 7, (300,), generator=generator)
    if isinstance(process, Absorbing):
        logits[:, process.mask_id] = -torch.inf
    p, share = torch.softmax(2 * logits, -1), torch.rand(300, generator=generator, dtype=torch.float64)
    alpha_t, alpha_s = torch.rand(2, 300, generator=generator, dtype=torch.float64).sort(0).values
    route_probabilities = posterior.psi_routes(
        p.gather(-1, z[:, None])[:, 0], process.prior_of(z), alpha_t, alpha_s, share
    )
    mixed = (
        route_probabilities.stay[:, None] * F.one_hot(z, 7)
        + route_probabilities.belief[:, None] * p
        + route_probabilities.prior[:, None] * process.prior()
    )
    assert torch.allclose(mixed, dense(p, z, alpha_t, alpha_s, share, process.prior()), rtol=0, atol=1e-12)
    assert torch.allclose(
        sum(route_probabilities, torch.zeros(300)), torch.ones(300, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_reference_tensors(golden: Path) -> None:
    data = np.load(golden / "posterior_duo_K27.npz")
    p, z = torch.from_numpy(data["x_theta_f64"]), torch.from_numpy(data["xt"])
    alpha_t, alpha_s = (torch.from_numpy(data[name]).double() for name in ("alpha_t", "alpha_s"))
    prior, share = Uniform(27).prior(), torch.full_like(alpha_t, 0.3)
    q_0 = posterior.posterior(p, z, alpha_t, torch.ones_like(alpha_s), prior)
    # their alphas are float32
    assert torch.allclose(q_0, torch.from_numpy(data["psi_q_x0_f64"]), atol=2e-7)
    again = posterior.marginal(q_0, alpha_s, prior)
    assert torch.allclose(again, torch.from_numpy(data["psi_pc_q_xs_f64"]), atol=2e-7)
    mixed = dense(p, z, alpha_t, alpha_s, share, prior)
    assert torch.allclose(mixed, torch.from_numpy(data["psi_q_sample_f64"]), atol=2e-7)


def test_the_rules_are_what_they_say() -> None:
    """(1 - kappa)(1 - alpha_s) is the probability of new noise, at four levels, for eta = 0.4."""
    alpha_t, alpha_s = double(0.0, 0.1, 0.8, 0.8), double(0.1, 0.3, 0.8, 0.9)
    expected = {
        "constant": [0.4, 0.4, 0.2, 0.1],
        "cap": [0.4, 0.4, 0.2, 0.1],
        "rescale": [0.4, 0.4, 0.4 * 0.2 / 0.8, 0.4 * 0.1 / 0.8],
        "loop": [0.0, 0.0, 0.2, 0.0],
        "mix": [0.6 * rest for rest in (0.9, 0.7, 0.2, 0.1)],
    }
    assert set(expected) == set(RULES)
    for rule in RULES:
        share = _kappa(rule, 0.4, alpha_t, alpha_s)
        assert torch.allclose((1 - share) * (1 - alpha_s), double(*expected[rule]), rtol=0, atol=1e-15), rule
        for start in (0.0, 0.5, 1.0):
            assert float(_kappa(rule, 0.4, double(start), double(1.0))) == 1.0


def test_kappa_needs_no_cap() -> None:
    """(1 - alpha_s) / alpha_t is never below 1 - alpha_s, where kappa is 0: within [0, 1] "cap" is "constant"."""
    alpha_t, alpha_s = (
        torch.rand(2, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).sort(0).values
    )
    assert torch.equal(_kappa("cap", 0.7, alpha_t, alpha_s), _kappa("constant", 0.7, alpha_t, alpha_s))


def test_absorbing_noise_gives_remdm() -> None:
    """A token is masked with probability s and unmasked with (alpha_s - (1 - s) alpha_t) / (1 - alpha_t)."""
    generator = torch.Generator().manual_seed(2)
    alpha_t, alpha_s = torch.rand(2, 100, dtype=torch.float64, generator=generator).sort(0).values
    for rule in ("constant", "cap", "rescale"):
        share = _kappa(rule, 0.2, alpha_t, alpha_s)
        again = (1 - share) * (1 - alpha_s)
        one, zero = torch.ones_like(alpha_t), torch.zeros_like(alpha_t)
        shown = posterior.psi_routes(one, zero, alpha_t, alpha_s, share)
        masked = posterior.psi_routes(zero, one, alpha_t, alpha_s, share)
        assert torch.allclose(shown.prior, again, atol=1e-14)
        assert torch.allclose(masked.belief, (alpha_s - (1 - again) * alpha_t) / (1 - alpha_t), atol=1e-12)


@pytest.mark.parametrize("kind", PROCESSES.types())
@pytest.mark.parametrize(("rule", "eta"), [*((rule, 0.0) for rule in RULES if rule != "mix"), ("mix", 1.0)])
def test_kappa_one_is_ancestral_draw_for_draw(kind: type, rule: Rule, eta: float) -> None:
    law = double(0.5, 0.3, 0.15, 0.05)
    process = kind(4 + (kind is Absorbing))
    oracle: Any = SingleToken(law, process)
    options: dict[str, Any] = {"num": 400, "length": 3, "steps": 6, "seed": 3}
    expected = generate(oracle, LogLinear(), Ancestral(process), **options)
    assert torch.equal(generate(oracle, LogLinear(), Psi(process, rule, eta), **options), expected)
    if rule != "loop":  # the loop is ancestral wherever the level rises
        other = generate(oracle, LogLinear(), Psi(process, rule, 0.5), **options)
        assert not torch.equal(other, expected)


@pytest.mark.parametrize("kind", PROCESSES.types())
@pytest.mark.parametrize("grid", GRIDS.types())
@pytest.mark.parametrize("rule", RULES)
def test_a_single_token_has_the_law_of_the_data_after_any_number_of_steps(rule: Rule, grid: type, kind: type) -> None:
    law = double(0.5, 0.3, 0.15, 0.05)
    process = kind(4 + (kind is Absorbing))
    for steps, eta in itertools.product((1, 2, 3, 10), (0.0, 0.05, 0.4, 1.0)):
        got = law_of(Psi(process, rule, eta), SingleToken(law, process), LogLinear(eps=0.0), steps, grid(), length=1)
        assert total_variation(got[:4], law) < 1e-12
        assert float(got[4:].sum()) == 0.0  # the last step leaves no mask token


def error(toy: Toy, rule: Rule, eta: float, steps: int) -> float:
    """Distance of the exact law from the data's, on the grid that belongs to the rule."""
    law, process, oracle = toy()
    grid = LinearConstantLinear() if rule == "loop" else LINEAR
    got = law_of(Psi(process, rule, eta), oracle, LogLinear(eps=1e-9), steps, grid)
    return total_variation(got[: len(law), : len(law)], law)


@pytest.mark.parametrize("toy", [uniform_toy, absorbing_toy])
@pytest.mark.parametrize("rule", RULES)
def test_the_law_converges_at_first_order_if_eta_falls_with_the_steps(rule: Rule, toy: Toy) -> None:
    """With kappa = 1 - O(1/steps) the number of redrawn tokens stays the same, and the error is O(1/steps)."""
    errors = [error(toy, rule, 1 - 2 / steps if rule == "mix" else 2 / steps, steps) for steps in (16, 64, 256)]
    assert errors[0] < 0.06
    for coarse, fine in itertools.pairwise(errors):
        assert 3.2 < coarse / fine < 4.7  # four times the steps give a quarter of the error


@pytest.mark.parametrize("toy", [uniform_toy, absorbing_toy])
@pytest.mark.parametrize("rule", RULES)
def test_the_error_that_remains_if_eta_is_fixed(rule: Rule, toy: Toy) -> None:
    """Tokens redrawn in one step are drawn independently, which is an error of O(eta) for any number of steps.

    In the loop, at one level, this error remains and is proportional to eta. With the other rules it falls towards the
    clean end, where fewer tokens are redrawn, as 1/sqrt(steps): four times the steps give half of the error.
    """
    kept = 0.9 if rule == "mix" else 0.1
    coarse, fine = (error(toy, rule, kept, steps) for steps in (256, 1024))
    if rule == "loop":
        assert 1.0 < coarse / fine < 1.1
        assert 1.9 < fine / error(toy, rule, kept / 2, 1024) < 2.3
    else:
        assert 1.6 < coarse / fine < 2.4


@pytest.mark.parametrize("toy", [uniform_toy, absorbing_toy])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("level", [0.3, 0.6, 1.0])
def test_a_step_draws_from_its_kernel(rule: Rule, toy: Toy, level: float) -> None:
    """Every state of the toy, 4000 times: frequencies of each position against the routes. The step starts at 0.3."""
    _, process, oracle = toy()
    sampler, count = Psi(process, rule, 0.5), 4000
    states = all_states(process.vocab_size)
    alpha_t, alpha_s = double(0.3)[0], double(level)[0]
    expected = kernel_of(sampler, oracle, states, alpha_t, alpha_s)
    z = states.repeat_interleave(count, 0)
    noise = Noise.of(0, 0, torch.arange(len(z)))
    got = sampler.step(oracle, z, alpha_t.expand(len(z)), alpha_s.expand(len(z)), noise)
    rate = F.one_hot(got, process.vocab_size).double().view(len(states), count, LENGTH, -1).mean(1)
    assert rate[expected == 0].sum() == 0
    possible = expected > 0
    statistic = float(((rate - expected)[possible] ** 2 * count / expected[possible]).sum())
    freedom = int(possible.sum()) - len(states) * LENGTH
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom) + 1e-6
    if level == 1.0 and isinstance(process, Absorbing):
        assert not (got == process.mask_id).any()


def test_unmasked_tokens_are_masked_again_but_not_in_the_last_step() -> None:
    law, process = double(0.5, 0.3, 0.2), Absorbing(4)
    seen: list[Tensor] = []
    tokens = generate(
        SingleToken(law, process),
        LogLinear(),
        Psi(process, eta=0.4),
        num=200,
        length=5,
        steps=10,
        batch_size=200,
        watch=lambda frame: seen.append(frame.tokens),
    )
    masked = torch.stack(seen) == process.mask_id
    assert (masked[1:] & ~masked[:-1]).any()
    assert not (tokens == process.mask_id).any()


@pytest.mark.parametrize("rule", RULES)
def test_the_greedy_tail_takes_the_most_likely_tokens(rule: Rule) -> None:
    _, process, oracle = uniform_toy()
    z = all_states(3)
    level, noise = torch.full((len(z),), 0.7, dtype=torch.float64), Noise.of(0, 0, torch.arange(len(z)))
    got = Psi(process, rule).last(oracle, z, level, "greedy", noise)
    assert torch.equal(got, oracle.log_probs(z, level).argmax(-1))


def test_bad_values_are_refused() -> None:
    _, process, oracle = uniform_toy()
    with pytest.raises(ValueError, match="'max': choose one of constant, cap, rescale, loop, mix"):
        Psi(process, "max")  # type: ignore[arg-type]
    for rule in RULES:
        for eta in (-0.1, 1.001, 5.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
                Psi(process, rule, eta)
    with pytest.raises(ValueError, match="kappa itself"):
        Psi(process, "mix", 1.5)
    with pytest.raises(ValueError, match=r"the psi sampler needs probabilities.*analytic sampler"):
        generate(OracleScore(oracle, process), LogLinear(), Psi(process), num=1, length=2, steps=2)
