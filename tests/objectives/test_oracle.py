"""Exact tests without training: on a toy, loss, likelihood and samplers reproduce the data's law."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from support.oracles import (
    LENGTH,
    absorbing_toy,
    all_states,
    entropy,
    gauss_legendre,
    law_of,
    suited,
    total_variation,
    uniform_toy,
)

from duality.diffusion import closed_forms, draws, posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import Cosine, Dual, LogLinear
from duality.noise import Noise
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.curriculum import TemperedBound
from duality.protocols import Denoiser, Dropout, Latent, Process, Schedule, Tail, TopK, Valid
from duality.samplers import SAMPLERS
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import generate

Toy = Callable[[], tuple[torch.Tensor, Process, Denoiser]]


def exact_bound(law: torch.Tensor, process: Process, denoiser: Denoiser, schedule: Schedule) -> float:
    """E_x E_t E_z of the general bound plus end terms: sums over all x and z, Gauss-Legendre over t."""
    num_states, prior = process.vocab_size, process.prior()
    states, tokens = all_states(num_states), all_states(len(law))
    # t = s^4: the bound has a logarithm at t = 0, which plain Gauss-Legendre resolves to 5e-4 only
    nodes, weights = gauss_legendre(40)
    nodes, weights = nodes**4, weights * 4 * nodes**3
    total = 0.0
    for t, weight in zip(nodes, weights):
        alpha, slope = schedule.alpha(t[None]), schedule.alpha_prime(t[None])
        p = denoiser.log_probs(states, alpha.expand(len(states))).exp()
        ratios = posterior.log_ratios(p, states, alpha[:, None], prior)
        noisy = posterior.marginal(torch.eye(num_states, dtype=torch.float64), alpha.expand(num_states), prior)
        for x in tokens:
            probability = noisy[x[0]][states[:, 0]] * noisy[x[1]][states[:, 1]]
            loss = closed_forms.bound(ratios, x.expand(len(states), -1), states, alpha[:, None], slope[:, None], prior)
            total += float(weight * law[x[0], x[1]] * (probability * loss.sum(-1)).sum())
    return total


def test_bound_with_the_leave_one_out_oracle_is_the_entropy() -> None:
    law, process, oracle = uniform_toy()
    schedule = LogLinear(eps=0.0)
    assert exact_bound(law, process, oracle, schedule) == pytest.approx(entropy(law), abs=1e-7)


@pytest.mark.parametrize("eps", [0.2, 0.5])
def test_end_terms_complete_the_bound_if_some_signal_is_left_at_the_end(eps: float) -> None:
    """With alpha(1) = eps, diffusion term + prior term = entropy + KL(q(z_1) || prior)."""
    law, process, oracle = uniform_toy()
    partial = exact_bound(law, process, oracle, LogLinear(eps=eps))
    alpha, prior, tokens = torch.tensor(eps, dtype=torch.float64), process.prior(), all_states(3)
    gap = sum(float(law[x[0], x[1]] * posterior.prior_gap(alpha, prior, x).sum()) for x in tokens)
    noisy = posterior.marginal(torch.eye(3, dtype=torch.float64), alpha.expand(3), prior)
    last = noisy.T @ law @ noisy
    missed = float((last * (last * 9).log()).sum())
    assert partial + gap == pytest.approx(entropy(law) + missed, abs=1e-7)


def test_the_full_posterior_is_not_the_oracle_of_uniform_noise() -> None:
    law, process, wrong = uniform_toy(leave_out=False)
    assert exact_bound(law, process, wrong, LogLinear(eps=0.0)) > entropy(law) + 0.3


def test_absorbing_oracle_bound_is_the_entropy() -> None:
    law, process, oracle = absorbing_toy()
    assert exact_bound(law, process, oracle, LogLinear(eps=0.0)) == pytest.approx(entropy(law), abs=1e-7)


@pytest.mark.parametrize("schedule", [LogLinear(eps=1e-4), Cosine(eps=1e-4)], ids=str)
def test_bound_objective_estimates_the_entropy(schedule: Schedule) -> None:
    """The objective that trains, with its own corruption: Monte Carlo against the exact value."""
    law, process, oracle = uniform_toy()
    count = 100_000
    noise = Noise.of(0, 0, torch.arange(count))
    pair = draws.categorical(law.flatten().expand(count, -1), noise.uniform("data"))
    x = torch.stack([pair // 3, pair % 3], 1)
    t = (torch.arange(count, dtype=torch.float64) + noise.uniform("t")) / count
    loss = ContinuousTimeBound(process, schedule)(
        oracle, x, t[torch.randperm(count, generator=torch.Generator().manual_seed(0))], noise
    )
    per_sequence = loss.nats.sum(-1)
    error = float(per_sequence.std()) / math.sqrt(count)
    assert abs(float(per_sequence.mean()) - entropy(law)) < 4.5 * error + 1e-3
    assert float(loss.total) == pytest.approx(float(loss.nats.sum()))


@pytest.mark.slow
def test_tempered_bound_at_small_tau_is_the_bound_on_its_range_of_alpha() -> None:
    """tau -> 0: the same integral over the schedule's range of alpha, through the Gaussian path."""
    law, process, oracle = uniform_toy()

    class Hard:
        """Takes the token of the largest weight, the limit of the mixture as tau -> 0."""

        def log_probs(
            self, z: Latent, alpha: torch.Tensor, valid: Valid = None, dropout: Dropout = None
        ) -> torch.Tensor:
            assert isinstance(z, TopK)
            return oracle.log_probs(z.ids.gather(-1, z.weights.argmax(-1, keepdim=True))[..., 0], alpha)

    schedule = Dual(3, alpha_min=0.1, alpha_max=0.9)
    expected = exact_bound(law, process, oracle, schedule)
    count = 60_000
    noise = Noise.of(2, 0, torch.arange(count))
    pair = draws.categorical(law.flatten().expand(count, -1), noise.uniform("data"))
    x = torch.stack([pair // 3, pair % 3], 1)
    t = (torch.arange(count, dtype=torch.float64) + noise.uniform("t")) / count
    loss = TemperedBound(schedule, tau=1e-4)(
        Hard(), x, t[torch.randperm(count, generator=torch.Generator().manual_seed(0))], noise
    )
    per_sequence = loss.nats.sum(-1)
    error = float(per_sequence.std()) / math.sqrt(count)
    assert abs(float(per_sequence.mean()) - expected) < 4.5 * error


@pytest.mark.parametrize("toy", [uniform_toy, absorbing_toy])
def test_exact_law_converges_at_first_order(toy: Toy) -> None:
    law, process, oracle = toy()
    errors = []
    for steps in (16, 64, 256):
        got = law_of(Ancestral(process), oracle, LogLinear(eps=1e-9), steps)[: len(law), : len(law)]
        errors.append(total_variation(got, law))
    assert errors[0] < 0.06
    for coarse, fine in zip(errors[:-1], errors[1:]):
        assert 3.3 < coarse / fine < 4.7  # four times the steps give a quarter of the error


def test_the_exact_law_of_the_wrong_oracle_does_not_converge_to_the_data() -> None:
    law, process, wrong = uniform_toy(leave_out=False)
    assert total_variation(law_of(Ancestral(process), wrong, LogLinear(eps=1e-9), 256), law) > 0.1


@pytest.mark.parametrize("tail", get_args(Tail))
@pytest.mark.parametrize("toy", [uniform_toy, absorbing_toy])
@pytest.mark.parametrize("name", SAMPLERS)
def test_generate_draws_from_the_exact_law(toy: Toy, name: str, tail: Tail) -> None:
    """The real loop, steps = 5 (where the law is not the data's), against the product of matrices."""
    _, process, oracle = toy()
    schedule, count, steps = LogLinear(), 40_000, 5
    kind = SAMPLERS[name]
    sampler = kind(process)
    # a step of the analytic sampler with the ratios of a belief is the posterior of that belief, also its greedy tail
    same = Ancestral(process) if kind is Analytic else sampler
    end: Tail = "posterior" if kind is Analytic and tail == "greedy" else tail
    expected = law_of(same, oracle, schedule, steps, tail=end).flatten()
    tokens = generate(
        suited(kind, oracle, process),
        schedule,
        sampler,
        num=count,
        length=LENGTH,
        steps=steps,
        tail=tail,
        batch_size=count,
    )
    counts = torch.bincount(tokens[:, 0] * process.vocab_size + tokens[:, 1], minlength=len(expected)).double()
    used = expected > 1e-12
    assert counts[~used].sum() == 0
    statistic = float(((counts - count * expected) ** 2 / (count * expected))[used].sum())
    freedom = int(used.sum()) - 1
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("process", [Uniform(5), Absorbing(5)], ids=str)
@pytest.mark.parametrize("alpha_s", [0.4, 0.8, 1.0])
def test_one_ancestral_step_has_the_posterior_law(process: Process, alpha_s: float) -> None:
    """From a wrong token or the mask token, where all routes are possible, against the dense posterior."""
    count = 200_000
    belief = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0], dtype=torch.float64)

    class Fixed:
        def log_probs(
            self, z: Latent, alpha: torch.Tensor, valid: Valid = None, dropout: Dropout = None
        ) -> torch.Tensor:
            assert isinstance(z, torch.Tensor)
            return belief.log().expand(*z.shape, -1)

    z = torch.full((count, 1), 4)
    levels = [torch.full((count,), level, dtype=torch.float64) for level in (0.2, alpha_s)]
    got = Ancestral(process).step(Fixed(), z, levels[0], levels[1], Noise.of(0, 0, torch.arange(count)))
    expected = posterior.posterior(belief, torch.tensor(4), levels[0][0], levels[1][0], process.prior())
    rate = torch.bincount(got.flatten(), minlength=5) / count
    assert ((rate - expected).abs() <= 4.5 * (expected * (1 - expected) / count).sqrt() + 1e-12).all()


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_steps_are_network_calls_and_samples_do_not_depend_on_the_batch(steps: int) -> None:
    _, process, oracle = uniform_toy()
    calls = []

    class Counting:
        def log_probs(
            self, z: Latent, alpha: torch.Tensor, valid: Valid = None, dropout: Dropout = None
        ) -> torch.Tensor:
            calls.append(float(alpha[0]))
            return oracle.log_probs(z, alpha)

    def sample(batch_size: int, num: int = 10) -> torch.Tensor:
        return generate(
            Counting(), LogLinear(), Ancestral(process), num=num, length=2, steps=steps, seed=4, batch_size=batch_size
        )

    whole = sample(10)
    assert len(calls) == steps
    assert calls == sorted(calls)
    assert torch.equal(whole, sample(3))
    assert torch.equal(whole[:4], sample(64, num=4))


def test_greedy_tail_is_the_argmax_of_the_belief_at_the_last_level() -> None:
    _, process, oracle = uniform_toy()
    seen = []

    class Recording:
        def log_probs(
            self, z: Latent, alpha: torch.Tensor, valid: Valid = None, dropout: Dropout = None
        ) -> torch.Tensor:
            log_p = oracle.log_probs(z, alpha)
            seen.append(log_p)
            return log_p

    tokens = generate(Recording(), LogLinear(), Ancestral(process), num=50, length=2, steps=3, tail="greedy")
    assert torch.equal(tokens, seen[-1].argmax(-1))
    ancestral = generate(oracle, LogLinear(), Ancestral(process), num=50, length=2, steps=3, tail="ancestral")
    assert not torch.equal(tokens, ancestral)


def test_a_belief_that_is_no_number_is_refused() -> None:
    _, process, oracle = uniform_toy()

    class Broken:
        def log_probs(
            self, z: Latent, alpha: torch.Tensor, valid: Valid = None, dropout: Dropout = None
        ) -> torch.Tensor:
            return oracle.log_probs(z, alpha) * torch.nan

    with pytest.raises(ValueError, match="not a number"):
        generate(Broken(), LogLinear(), Ancestral(process), num=1, length=2, steps=2)


def test_bad_requests_say_what_is_allowed() -> None:
    _, process, oracle = uniform_toy()
    with pytest.raises(ValueError, match="at least 1 step"):
        generate(oracle, LogLinear(), Ancestral(process), num=1, length=2, steps=0)
    with pytest.raises(ValueError, match="each must be at least 1"):
        generate(oracle, LogLinear(), Ancestral(process), num=0, length=2, steps=1)
    with pytest.raises(ValueError, match="'best': choose ancestral, greedy, posterior"):
        generate(oracle, LogLinear(), Ancestral(process), num=1, length=2, steps=1, tail="best")  # type: ignore[arg-type]
