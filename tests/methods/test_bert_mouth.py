"""BERT-Mouth: its loss, its pseudo-likelihood, and Gibbs sampling against exact values on the toy."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from support.masked_models import MASK, TIMES, agrees, batch, draw_data, trained
from support.oracles import LENGTH, absorbing_toy, all_states, data_law, entropy, total_variation
from torch import Tensor

from duality.diffusion.processes import Absorbing
from duality.methods.bert_mouth import BertMouth, Gibbs, _Chain, _MaskedTokens, _PseudoLikelihood
from duality.noise import Noise
from duality.protocols import Denoiser, Dropout, Latent, Tail, Valid
from duality.samplers.generate import generate


class Lopsided(NamedTuple):
    """Exact conditionals, but wrong about the first token of a sequence, so that one sweep is not enough."""

    denoiser: Denoiser
    first: Tensor

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        assert isinstance(z, Tensor)
        log_p = self.denoiser.log_probs(z, alpha.clamp(0.1, 0.9))
        blank = (z == MASK).all(-1)[:, None, None]
        return torch.where(blank, F.pad(self.first, (0, 1)).log(), log_p)


def test_masked_tokens_is_unbiased_for_the_mean_over_patterns() -> None:
    """-log p(x_l | the other token, unmasked with probability 1 - rate), summed over l: patterns have equal weight."""
    law, process, exact = absorbing_toy()
    rate, count = 0.15, 200_000
    noise = Noise.of(2, 0, torch.arange(count))
    x = draw_data(law, count, noise)
    loss = _MaskedTokens(process, rate)(exact, x, noise.uniform("t"), noise)
    marginal = [-float((m * m.log()).sum()) for m in (law.sum(1), law.sum(0))]
    conditional = 2 * entropy(law) - sum(marginal)
    target = rate * sum(marginal) + (1 - rate) * conditional
    nats = loss.nats.sum(-1)
    assert abs(float(nats.mean()) - target) < 4.5 * float(nats.std()) / math.sqrt(count)
    assert abs(target - conditional) > 0.02  # more than the allowed error, so the test would notice a wrong weight


def test_pseudo_likelihood_over_times_is_the_sum_over_positions() -> None:
    x, _, noise = batch(rows=4)
    valid = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0]]).bool()
    network = trained(BertMouth())
    measure = _PseudoLikelihood(Absorbing(8))
    grid = (torch.arange(30, dtype=torch.float64) + 0.5) / 30  # 5, 3, 2 and 1 divide 30
    got = torch.stack([measure(network, x, t.expand(4), noise, valid).nats for t in grid]).mean(0)
    expected = torch.zeros_like(got)
    for place in range(5):
        z = x.clone()
        z[:, place] = 7
        log_p = network.log_probs(z, torch.ones(4, dtype=torch.float64), valid).detach()
        expected[:, place] = -log_p[torch.arange(4), place, x[:, place]]
    assert float((got - expected * valid).abs().max()) < 1e-12
    one = measure(network, x, torch.full((4,), 1.0), noise, valid).nats
    assert torch.equal((one != 0).sum(-1), torch.ones(4, dtype=torch.int64))
    ends = measure.ends(network, x, noise, valid)
    assert not ends.prior.any()
    assert not ends.reconstruction.any()


def test_pseudo_likelihood_of_the_oracle_is_the_conditional_entropy() -> None:
    law, process, exact = absorbing_toy()
    x, t = all_states(3), torch.tensor([0.25, 0.75], dtype=torch.float64)
    noise = Noise.of(0, 0, torch.arange(9))
    nats = sum(_PseudoLikelihood(process)(exact, x, at.expand(9), noise).nats.sum(-1) / 2 for at in t)
    marginal = sum(-float((m * m.log()).sum()) for m in (law.sum(1), law.sum(0)))
    assert float((law.flatten() * nats).sum()) == pytest.approx(2 * entropy(law) - marginal, abs=1e-12)


# --- BERT-Mouth's sampler


def redraws() -> tuple[Tensor, Tensor]:
    """Transition matrices (9, 9) that redraw one position from the exact conditional."""
    law, pairs = data_law(), all_states(3)
    given_second, given_first = law / law.sum(0), law / law.sum(1, keepdim=True)
    same = [pairs[:, None, place] == pairs[None, :, place] for place in range(LENGTH)]
    first, second = pairs[None, :, 0], pairs[None, :, 1]
    return same[1] * given_second[first, second], same[0] * given_first[first, second]


def gibbs_law(first: Tensor, steps: int) -> Tensor:
    """The exact law after ``steps`` draws from mask tokens: each order has probability 1/2 in each sweep."""
    law, (one, two) = data_law(), redraws()
    forwards = first[:, None] * law / law.sum(1, keepdim=True)
    current = ((forwards + first * law / law.sum(0)) / 2).flatten()
    for _ in range(steps // LENGTH - 1):
        current = current @ (one @ two + two @ one) / 2
    return (current @ (one + two) / 2 if steps % LENGTH else current).view(3, 3)


WRONG = torch.tensor([0.02, 0.08, 0.9], dtype=torch.float64)


def test_gibbs_converges_to_the_data_at_the_rate_of_the_second_eigenvalue() -> None:
    one, two = redraws()
    sizes = torch.linalg.eigvals((one @ two + two @ one) / 2).abs().sort(descending=True).values
    assert float(sizes[0]) == pytest.approx(1, abs=1e-12)
    second = float(sizes[1])
    assert 0.05 < second < 0.95
    errors = [total_variation(gibbs_law(WRONG, LENGTH * sweeps), data_law()) for sweeps in range(1, 16)]
    assert errors[0] > 0.1
    for before, after in zip(errors[8:-1], errors[9:]):
        assert after / before == pytest.approx(second, rel=1e-2)


@pytest.mark.parametrize("steps", [2, 3, 4, 5, 8])
def test_gibbs_draws_from_its_exact_law(steps: int) -> None:
    _, process, exact = absorbing_toy()
    tokens = generate(
        Lopsided(exact, WRONG), TIMES, Gibbs(process), num=40_000, length=LENGTH, steps=steps, batch_size=40_000
    )
    agrees(tokens, gibbs_law(WRONG, steps))


def test_gibbs_from_the_exact_conditionals_is_exact_after_one_sweep() -> None:
    law, process, exact = absorbing_toy()
    tokens = generate(exact, TIMES, Gibbs(process), num=40_000, length=LENGTH, steps=2, batch_size=40_000)
    agrees(tokens, law)


def test_gibbs_orders_are_new_random_permutations() -> None:
    count = 6000
    ids = torch.zeros(count, 3, dtype=torch.int64)
    orders = Noise.of(0, 0, torch.arange(count))
    sweeps = []
    for sweep in range(2):
        order = torch.cat([_Chain(ids, 3 * sweep + turn, orders).place for turn in range(3)], 1)
        assert torch.equal(order.sort(-1).values, torch.arange(3).expand(count, -1))
        sweeps.append(order[:, 0] * 2 + (order[:, 1] > order[:, 2]))
    counts = torch.bincount(sweeps[0] * 6 + sweeps[1], minlength=36).double()  # jointly uniform: 36 equal cells
    assert abs(float(((counts - count / 36) ** 2 / (count / 36)).sum()) - 35) < 4.5 * math.sqrt(70)


@pytest.mark.parametrize("tail", ["greedy", "posterior"])
def test_gibbs_masks_the_position_that_it_draws_and_its_last_step_may_be_greedy(tail: Tail) -> None:
    _, process, exact = absorbing_toy()
    seen: list[tuple[Tensor, Tensor]] = []

    class Recording:
        def log_probs(self, z: Latent, alpha: Tensor, valid: Any = None, dropout: Any = None) -> Tensor:
            assert isinstance(z, Tensor)
            seen.append((z, exact.log_probs(z, alpha)))
            return seen[-1][1]

    tokens = generate(Recording(), TIMES, Gibbs(process), num=50, length=LENGTH, steps=5, tail=tail)
    assert [(z == MASK).sum(-1).tolist() for z, _ in seen] == [[count] * 50 for count in (2, 1, 1, 1, 1)]
    z, log_p = seen[-1]
    assert torch.equal(tokens, torch.where(z == MASK, log_p.argmax(-1), z))


# --- both
