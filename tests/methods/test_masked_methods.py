"""DiffusionBERT against exact values on the toy, and tests that DiffusionBERT and BERT-Mouth share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import plain_forms
from support.masked_models import MASK, METHODS, PROCESS, SMALL, STRENGTH, TIMES, agrees, batch, draw_data, trained
from support.oracles import LENGTH, absorbing_toy, all_states, data_law, entropy, gauss_legendre, total_variation
from torch import Tensor

from duality.denoisers.conditioning import with_labels
from duality.denoisers.filters import Temperature
from duality.denoisers.memo import Memoized
from duality.diffusion.processes import Absorbing
from duality.diffusion.schedules import Polynomial
from duality.fused.lazy import _belief_from
from duality.fused.loss import fused_loss
from duality.methods.bert_mouth import BertMouth, Gibbs
from duality.methods.diffusion_bert import (
    DiffusionBERT,
    SpindleDenoiser,
    SpindleSampler,
    _excess,
    _hidden_chance,
    _information_of,
    _skews,
    _speed,
    _SpindleBound,
    _SpindleNats,
    _unigram_information,
)
from duality.noise import Noise
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.protocols import Denoiser, Dropout, Latent, Method, Valid, Vocabulary
from duality.samplers.generate import generate, levels
from duality.training.loop import load_weights


def toy_information() -> Tensor:
    """Frequencies that are not those of the toy, as every schedule must work; the first token is clamped."""
    return -torch.tensor([0.7, 0.25, 0.05], dtype=torch.float64).log()


def spindle(t: Tensor, strength: float = STRENGTH) -> Tensor:
    """alpha_v(t) as the paper writes it, (B, K), from t (B,)."""
    info = toy_information()
    ahead = (1 - float((info * (-info).exp()).sum()) / info).clamp(-1, 1)
    return 1 - t[:, None] - strength * torch.sin(math.pi * t[:, None]) * ahead


@dataclass(frozen=True)
class SpindleOracle:
    """p(x_l | z_t) where each token has its own speed of masking."""

    law: Tensor
    information: Tensor

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        assert isinstance(z, Tensor)
        unmasked = F.one_hot(z, MASK + 1).double()[..., :MASK]
        likelihood = torch.where((z == MASK)[..., None], 1 - spindle(1 - alpha)[:, None], unmasked)
        joint = self.law * likelihood[:, 0, :, None] * likelihood[:, 1, None, :]
        probs = torch.stack([joint.sum(2), joint.sum(1)], 1)
        return F.pad(probs / probs.sum(-1, keepdim=True), (0, 1)).log()


def oracle() -> SpindleOracle:
    return SpindleOracle(data_law(), toy_information())


def test_spindle_schedule_falls_from_one_to_zero_at_the_stated_slope() -> None:
    skew = _skews(toy_information(), STRENGTH)
    t = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None].requires_grad_()
    alpha = 1 - _hidden_chance(skew, t)
    assert torch.allclose(alpha, spindle(t.detach()[:, 0]), atol=1e-15, rtol=0)
    assert torch.allclose(alpha[[0, -1]], torch.tensor([[1.0], [0.0]], dtype=torch.float64).expand(2, 3), atol=1e-15)
    assert bool((alpha.diff(dim=0) < 0).all())
    inner = torch.linspace(0.001, 0.999, 500, dtype=torch.float64)[:, None].requires_grad_()
    for token in range(3):
        (slope,) = torch.autograd.grad((1 - _hidden_chance(skew[token], inner)).sum(), inner)
        rate = -slope / _hidden_chance(skew[token], inner)
        assert torch.allclose(_speed(skew[token], inner), rate, rtol=1e-12)
        assert torch.allclose(_excess(skew[token], inner) + 1 / inner, rate, rtol=1e-12)


def test_spindle_stays_monotone_for_any_corpus_and_any_allowed_strength() -> None:
    """A corpus of one word, and the greatest strength: the slopes are close to 0, but positive."""
    counts = torch.tensor([1e12, 3.0, 0.0, 0.0])
    skew = _skews(_unigram_information(counts).float(), math.nextafter(1 / math.pi, 0))
    t = torch.linspace(1e-9, 1, 5001, dtype=torch.float64)[:, None]
    assert bool((_speed(skew, t) > 0).all())
    assert bool((_hidden_chance(skew, t).diff(dim=0) > 0).all())
    assert bool(skew[0] < 0 < skew[1])


def test_information_is_the_smoothed_surprise_of_the_corpus() -> None:
    got = _unigram_information(torch.tensor([6.0, 1.0, 0.0]))
    assert torch.allclose(got, -torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log())
    alike = trained(DiffusionBERT()).information.new_full((7,), math.log(7))
    assert float(_skews(alike, STRENGTH).abs().max()) < 1e-15


# --- DiffusionBERT's bound


def spindle_bound(log_p: Tensor, x: Tensor, masked: Tensor, t: Tensor, skew: Tensor) -> Tensor:
    """The bound per token of a materialised belief."""
    return fused_loss(_belief_from(log_p), _SpindleNats(x, t[:, None], torch.ones_like(t)[:, None], skew), masked).nats


def exact_spindle_bound(denoiser: Denoiser, law: Tensor) -> float:
    """E_x E_t E_z: all x, all patterns of mask tokens with their probabilities, Gauss-Legendre over t = s^4."""
    skew, patterns = _skews(toy_information(), STRENGTH), all_states(2).bool()
    nodes, weights = gauss_legendre(40)
    nodes, weights = nodes**4, weights * 4 * nodes**3
    total = 0.0
    for t, weight in zip(nodes, weights):
        alpha = spindle(t[None])[0]
        for x in all_states(3):
            probability = torch.where(patterns, 1 - alpha[x], alpha[x]).prod(-1)
            z, times = torch.where(patterns, MASK, x), t.expand(len(patterns))
            log_p = denoiser.log_probs(z, 1 - times)
            nats = spindle_bound(log_p, x.expand(len(z), -1), patterns, times, skew).sum(-1)
            total += float(weight * law[x[0], x[1]] * (probability * nats).sum())
    return total


def test_spindle_bound_of_the_oracle_is_the_entropy() -> None:
    law = data_law()
    assert exact_spindle_bound(oracle(), law) == pytest.approx(entropy(law), abs=1e-6)


def test_spindle_bound_needs_the_belief_that_knows_when_tokens_are_masked() -> None:
    """The posterior of plain absorbing noise is not the oracle here, and its bound is larger."""
    law, _, plain = absorbing_toy()
    assert exact_spindle_bound(plain, law) > entropy(law) + 1e-3


def test_spindle_bound_with_equal_information_is_the_masked_bound() -> None:
    x, t, noise = batch(rows=64)
    log_p = torch.log_softmax(noise.normal("logits", 5, 7), -1)
    masked, level = noise.uniform("hidden", 5) < 0.6, (1 - t)[:, None]
    nats = spindle_bound(log_p, x, masked, t, _skews(torch.full((7,), 1.7), STRENGTH))
    slope = -torch.ones_like(level)
    assert float((nats - plain_forms.absorbing_bound(log_p, x, masked, level, slope)).abs().max()) < 1e-12
    network = trained(DiffusionBERT())
    network.information.fill_(2.0)
    mine = _SpindleBound(Absorbing(8), STRENGTH)(network, x, t, noise).nats
    assert torch.allclose(
        mine, ContinuousTimeBound(Absorbing(8), Polynomial(eps=0.0))(network, x, t, noise).nats, rtol=1e-12
    )


def test_spindle_bound_is_the_divergence_of_a_short_step_for_any_belief() -> None:
    """KL(q(z_s | mask, x) || q(z_s | mask, belief)) / (t - s) as s -> t; for the oracle some terms cancel."""
    x, t, noise = batch(rows=40, num_tokens=3)
    log_p, skew, short = torch.log_softmax(noise.normal("logits", 5, 3), -1), _skews(toy_information(), STRENGTH), 1e-6
    stay = (1 - spindle(t - short)) / (1 - spindle(t))
    stay_x, p_x = stay.gather(1, x), log_p.exp().gather(-1, x[..., None])[..., 0]
    stays_masked = (log_p.exp() * stay[:, None]).sum(-1)
    divergence = (1 - stay_x) * -p_x.log() + stay_x * (stay_x / stays_masked).log()
    nats = spindle_bound(log_p, x, torch.ones_like(x, dtype=torch.bool), t, skew)
    assert torch.allclose(nats, divergence / short, rtol=1e-3, atol=1e-4)


def test_spindle_bound_is_precise_in_float32_near_the_clean_end() -> None:
    """The speeds grow as 1/t; subtracting their mean loses no precision."""
    x, _, noise = batch(rows=50)
    log_p = torch.log_softmax(noise.normal("logits", 5, 7), -1)
    skew = noise.normal("skew")[:7] / 9
    for t in (1e-9, 1e-6, 0.01, 0.5, 1.0):
        times, rest = torch.full((250,), t, dtype=torch.float64), []
        for belief in (log_p, log_p.float()):
            formula = _SpindleNats(x.flatten(), times, torch.ones_like(times), skew)
            numbers = [number.double() for number in formula.read(belief.view(-1, 7).clone())[0]]
            rest.append(formula.nats(*numbers) + _speed(skew[formula.x], times) * numbers[1])
        assert float(rest[0].abs().max()) < 10
        assert torch.allclose(rest[0], rest[1], atol=1e-5, rtol=0)


def test_spindle_objective_estimates_the_entropy() -> None:
    """With its own corruption: Monte Carlo against the exact value."""
    law, count = data_law(), 100_000
    noise = Noise.of(0, 0, torch.arange(count))
    x = draw_data(law, count, noise)
    t = (torch.arange(count, dtype=torch.float64)[noise.uniform("order").argsort()] + noise.uniform("t")) / count
    loss = _SpindleBound(PROCESS, STRENGTH)(oracle(), x, t, noise)
    nats = loss.nats.sum(-1)
    assert abs(float(nats.mean()) - entropy(law)) < 4.5 * float(nats.std()) / math.sqrt(count)
    assert float(loss.total) == pytest.approx(float(loss.nats.sum()))


# --- DiffusionBERT's sampler


def spindle_law(steps: int) -> Tensor:
    """The exact law of the plug-in sampler: the product of its transition matrices."""
    states, denoiser = all_states(MASK + 1), oracle()
    current = (states == MASK).all(-1).double()
    alphas = levels(TIMES, steps)
    for alpha_t, alpha_s in zip(alphas[:-1], alphas[1:]):
        p = denoiser.log_probs(states, alpha_t.expand(len(states))).exp()[..., :MASK].nan_to_num()
        stay = ((1 - spindle(1 - alpha_s[None])) / (1 - spindle(1 - alpha_t[None])))[0]
        turn = torch.cat([p * (1 - stay), (p * stay).sum(-1, keepdim=True)], -1)
        kernel = torch.where((states == MASK)[..., None], turn, F.one_hot(states, MASK + 1).double())
        joint = kernel[:, 0, :, None] * kernel[:, 1, None, :]
        current = (current[:, None, None] * joint).sum(0).flatten()
    return current.view(MASK + 1, MASK + 1)


def test_spindle_sampler_converges_to_the_data_at_first_order() -> None:
    laws = [spindle_law(steps)[:MASK, :MASK] for steps in (16, 64, 256)]
    errors = [total_variation(law, data_law()) for law in laws]
    assert errors[0] < 0.06
    for coarse, fine in zip(errors[:-1], errors[1:]):
        assert 3.3 < coarse / fine < 4.7  # four times the steps give a quarter of the error


@pytest.mark.parametrize("steps", [1, 5])
def test_spindle_sampler_draws_from_its_exact_law(steps: int) -> None:
    sampler = SpindleSampler(PROCESS, STRENGTH)
    tokens = generate(
        oracle(), TIMES, sampler, num=40_000, length=LENGTH, steps=steps, tail="ancestral", batch_size=40_000
    )
    agrees(tokens, spindle_law(steps)[:MASK, :MASK])


@pytest.mark.parametrize("later", [0.9, 0.3, 0.05])
def test_one_spindle_step_unmasks_each_token_at_its_own_speed(later: float) -> None:
    """The frequencies of all outcomes are p_v (1 - m_v), and the rest for the mask token, with a fixed belief."""
    belief, count = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64), 200_000

    @dataclass(frozen=True)
    class Fixed:
        information: Tensor

        def log_probs(self, z: Latent, alpha: Tensor, valid: Any = None, dropout: Any = None) -> Tensor:
            assert isinstance(z, Tensor)
            return belief.log().expand(*z.shape, -1)

    low, high = (torch.full((count,), 1 - t, dtype=torch.float64) for t in (0.95, later))
    z = torch.full((count, 1), MASK)
    noise = Noise.of(1, 0, torch.arange(count))
    got = SpindleSampler(PROCESS, STRENGTH).step(Fixed(toy_information()), z, low, high, noise)
    stay = ((1 - spindle(1 - high[:1])) / (1 - spindle(1 - low[:1])))[0]
    expected = torch.cat([belief[:3] * (1 - stay), (belief[:3] * stay).sum()[None]])
    rate = torch.bincount(got.flatten(), minlength=4) / count
    assert bool(((rate - expected).abs() <= 4.5 * (expected * (1 - expected) / count).sqrt() + 1e-12).all())


# --- BERT-Mouth's objective and measure


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_nothing_depends_on_how_a_batch_is_divided_or_on_padding(method: Method) -> None:
    assert isinstance(method, Method)
    network = trained(method)
    x, t, noise = batch()
    valid = torch.arange(5) < torch.tensor([5, 4, 3, 5, 2, 1])[:, None]
    for objective in (method.phases(7, 1)[0].objective, method.measure(7)):
        whole = objective(network, x, t, noise, valid)
        assert whole.nats.shape == x.shape
        assert float(whole.nats.sum()) > 0
        assert not whole.nats[~valid].any()
        parts = [torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5])]
        split = [objective(network, x[rows], t[rows], noise.select(rows), valid[rows]).nats for rows in parts]
        assert torch.allclose(torch.cat(split), whole.nats, atol=1e-12)
        other = torch.where(valid, x, (x + 1) % 7)
        assert torch.allclose(objective(network, other, t, noise, valid).nats, whole.nats, atol=1e-12)
    sampler = method.sampler(7)
    options: dict[str, Any] = {"length": 5, "steps": sampler.steps(5)}
    tokens = generate(network, method.sampling_schedule(), sampler, num=6, **options)
    assert torch.equal(tokens, generate(network, method.sampling_schedule(), sampler, num=6, batch_size=4, **options))
    assert tokens.shape == (6, 5)
    assert int(tokens.max()) < 7


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_networks_on_the_meta_device_and_with_labels(method: Method) -> None:
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in method.network(SMALL, Vocabulary(7, 2)).named_parameters()}
    network = trained(method, num_labels=2)
    assert shapes == {name: value.shape for name, value in network.named_parameters()}
    x, t, noise = batch()
    conditioned = with_labels(network, torch.tensor([0, 1, 2, 0, 1, 2]))
    loss = method.phases(7, 1)[0].objective(conditioned, x, t, noise, None, dropout=True)
    torch.autograd.backward(loss.total)
    for name, value in network.named_parameters():
        assert (value.grad is not None and bool(value.grad.any())) == value.requires_grad, name


def test_information_is_saved_with_the_weights() -> None:
    """Saved, loaded into a network that was built without the corpus, and found inside wrappers."""
    method = DiffusionBERT()
    network = trained(method)
    fresh = method.network(SMALL, Vocabulary(7)).double()
    assert isinstance(fresh, SpindleDenoiser)
    assert not torch.equal(fresh.information, network.information)
    load_weights(fresh, dict(network.named_parameters()))
    x, t, noise = batch()
    measure = method.measure(7)
    assert torch.equal(measure(fresh, x, t, noise).nats, measure(network, x, t, noise).nats)
    low, high = (fresh.log_probs(torch.full_like(x, 7), torch.full((6,), level)) for level in (0.2, 0.8))
    assert not torch.allclose(low, high)  # the belief depends on the time
    assert _information_of(Memoized(Temperature(fresh, 0.5))) is fresh.information


def test_bad_requests_say_what_is_allowed() -> None:
    _, process, exact = absorbing_toy()
    with pytest.raises(ValueError, match=r"steps is 4: .* at least 5 steps"):
        generate(exact, TIMES, Gibbs(process), num=1, length=5, steps=4)
    for strength in (-0.1, 1 / math.pi, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"method.strength is .* \[0, 1/pi"):
            DiffusionBERT(strength)
    for rate in (0.0, -0.5, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"method.rate is .* \(0, 1\]"):
            BertMouth(rate)
    with pytest.raises(ValueError, match="Oracle does not know how informative"):
        generate(exact, TIMES, SpindleSampler(PROCESS, STRENGTH), num=1, length=2, steps=2)
