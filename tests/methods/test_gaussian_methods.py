"""Plaid and Diffusion-LM: their schedules, gradients, self-conditioning, and that they learn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from duality import protocols
from duality.methods import plaid
from duality.methods.diffusion_lm import LEAST, DiffusionLM, DiffusionLMDenoiser, _SimpleLoss
from duality.methods.plaid import Plaid, PlaidDenoiser, _LearnedSchedule, _PlaidBound
from duality.networks.dit import DiT
from duality.noise import Noise, stratified_times
from duality.objectives import variational
from duality.protocols import Denoiser, Method, Objective, Score, Tail, Vocabulary
from duality.samplers import gaussian
from duality.samplers.generate import generate

NETWORK = DiT(width=32, depth=1, heads=2, time_width=16, dropout=0.0)
TAILS: tuple[Tail, ...] = get_args(Tail)
METHODS: list[Method] = [
    Plaid(embedding_width=8),
    Plaid(embedding_width=8, self_conditioning=True),
    DiffusionLM(embedding_width=8),
]


def test_learned_schedule_rises_from_0_to_1_and_knows_its_slope() -> None:
    torch.manual_seed(3)
    schedule = _LearnedSchedule(-3.0, 6.0)
    t = torch.linspace(0, 1, 101, dtype=torch.float64).requires_grad_()
    s, rise = schedule.interior(t)
    assert s[[0, -1]].tolist() == [0, 1]
    assert (s.diff() > 0).all()
    (slope,) = torch.autograd.grad(s.sum(), t)
    assert torch.allclose(rise, slope, rtol=1e-10)
    gamma, gamma_prime = schedule.between(s, rise)
    assert gamma[[0, -1]].tolist() == [-3.0, 6.0]
    assert torch.allclose(gamma_prime, 9 * slope, rtol=1e-10)


def test_sqrt_schedule_knows_its_ends_and_its_slope() -> None:
    t = torch.linspace(0, 1, 11, dtype=torch.float64).requires_grad_()
    gamma, slope = small(DiffusionLM(offset=1e-4)).gamma(t)
    assert torch.sigmoid(gamma[0]).item() == pytest.approx(0.01)
    assert torch.sigmoid(-gamma[-1]).item() == pytest.approx(LEAST)
    assert torch.allclose(torch.autograd.grad(gamma.sum(), t)[0], slope, rtol=1e-9)


# The models


def double(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def small(method: Method, num_tokens: int = 11, *, random_weights: bool = True) -> Any:
    """A network in float64; with ``random_weights`` zero-initialised weights are random too."""
    torch.manual_seed(0)
    model = method.network(NETWORK, Vocabulary(num_tokens)).double()
    if random_weights:
        with torch.no_grad():
            for name, value in model.named_parameters():
                if not name.startswith(("schedule", "table")):
                    value.add_(0.2 * torch.randn_like(value))
    return model


def batch(rows: int = 8, length: int = 6, num_tokens: int = 11) -> tuple[Tensor, Tensor, Noise, Tensor]:
    """Tokens, times, noise, and ``valid`` with some padding."""
    noise = Noise.of(7, 0, torch.arange(rows))
    valid = torch.arange(length) < (length - noise.integers("filling", 3))[:, None]
    return noise.integers("x", num_tokens, length), stratified_times(7, 0, rows), noise, valid


def objective_of(method: Method) -> Objective:
    return method.phases(11, 10)[0].objective


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_loss_does_not_depend_on_how_the_batch_is_divided(method: Method) -> None:
    model, (x, t, noise, valid) = small(method), batch()
    for objective in (objective_of(method), method.measure(11)):
        whole = objective(model, x, t, noise, valid)
        assert whole.total.item() == pytest.approx(whole.nats.sum().item(), rel=1e-12)
        parts = []
        for start in (0, 1, 4):
            rows = slice(start, {0: 1, 1: 4, 4: 8}[start])
            index = torch.arange(8)[rows]
            parts.append(objective(model, x[rows], t[rows], noise.select(index), valid[rows]).nats)
        assert torch.allclose(torch.cat(parts), whole.nats, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_padding_has_no_loss_and_no_effect(method: Method) -> None:
    model, (x, t, noise, valid) = small(method), batch()
    other = torch.where(valid, x, (x + 1) % 11)
    assert not valid.all()
    for objective in (objective_of(method), method.measure(11)):
        nats = objective(model, x, t, noise, valid).nats
        assert (nats[~valid] == 0).all()
        assert torch.allclose(nats, objective(model, other, t, noise, valid).nats, rtol=1e-9)
    ends, changed = (method.measure(11).ends(model, ids, noise, valid) for ids in (x, other))
    assert torch.allclose(ends.reconstruction[valid], changed.reconstruction[valid], rtol=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_every_parameter_has_a_gradient(method: Method) -> None:
    model, (x, t, noise, valid) = small(method, random_weights=True), batch()
    objective_of(method)(model, x, t, noise, valid, dropout=True).total.backward()  # type: ignore[no-untyped-call]
    for name, value in model.named_parameters():
        assert value.grad is not None, name
        assert torch.isfinite(value.grad).all(), name
        assert float(value.grad.abs().max()) > 0, name


def test_training_loss_of_plaid_is_an_unbiased_bound() -> None:
    """Reconstruction is computed for some of the samples and weighted: the mean is the measure with its ends."""
    model, count = small(Plaid(embedding_width=4)), 6_000
    x, t, noise, _ = batch(count, 2)
    with torch.no_grad():
        got = _PlaidBound()(model, x, t, noise).nats.sum(-1)
        ends = variational.Variational().ends(model, x, noise.fold("other"))
        expected = (variational.Variational()(model, x, t, noise).nats + ends.prior + ends.reconstruction).sum(-1)
    error = float((got - expected).std()) / math.sqrt(count)
    assert abs(float((got - expected).mean())) < 4.5 * error
    assert 9 * error < float(ends.reconstruction.sum(-1).mean())


def test_untrained_plaid_is_the_model_of_uniform_tokens() -> None:
    """Its belief is Bayes' rule with a uniform prior, so its bound is log K, up to the prior term."""
    model, count = small(Plaid(embedding_width=4), random_weights=False), 4_000
    x, t, noise, _ = batch(count, 4)
    with torch.no_grad():
        model.table.mul_(3)  # only directions count
        ends = variational.Variational().ends(model, x, noise)
        nats = (variational.Variational()(model, x, t, noise).nats + ends.prior + ends.reconstruction).mean(-1)
    error = float(nats.std()) / math.sqrt(count)
    assert error < 0.05
    assert abs(float(nats.mean()) - math.log(11)) < 4.5 * error + float(ends.prior.mean())


def gradients_of(model: PlaidDenoiser, rows: slice) -> dict[str, Tensor]:
    x, t, noise, _ = batch()
    index = torch.arange(8)[rows]
    model.zero_grad()
    _PlaidBound()(model, x[rows], t[rows], noise.select(index)).total.backward()  # type: ignore[no-untyped-call]
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def test_variance_gradient_reaches_the_interior_of_the_schedule_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample: the interior's gradient is 2 loss times the plain gradient; all others are the plain gradients."""
    model = small(Plaid(embedding_width=4))
    x, t, noise, _ = batch()
    interior = {"schedule.steepness", "schedule.place", "schedule.height"}
    for row in range(3):
        got = gradients_of(model, slice(row, row + 1))
        with monkeypatch.context() as patch:
            patch.setattr(plaid, "_reweight_gradient", lambda value, weight: value)
            plain = gradients_of(model, slice(row, row + 1))
        index = torch.tensor([row])
        loss = variational.Variational()(model, x[index], t[index], noise.select(index)).nats.mean().detach()
        for name, gradient in plain.items():
            factor = 2 * loss if name in interior else 1.0
            assert torch.allclose(got[name], factor * gradient, rtol=1e-8, atol=1e-12), name


def test_gradient_of_the_ends_is_that_of_the_whole_loss() -> None:
    """Reconstruction, diffusion and prior all depend on the ends: compared with finite differences."""
    model = small(Plaid(embedding_width=4))
    gradient = gradients_of(model, slice(0, 8))["schedule.offset"]
    x, t, noise, _ = batch()
    for end in range(2):
        values = []
        for shift in (1e-5, -2e-5):
            with torch.no_grad():
                model.schedule.offset[end] += shift
                values.append(float(_PlaidBound()(model, x, t, noise).total))
        with torch.no_grad():
            model.schedule.offset[end] += 1e-5
        assert float(gradient[end]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


def test_the_training_loss_is_the_loss_of_the_measure() -> None:
    """Every sample with self-conditioning, none reconstructed: the training loss is the measure's plus the prior."""
    model, (x, t, noise, valid) = small(METHODS[1]), batch()
    rows = noise.uniform("reconstruct") >= 0.25
    assert rows.any()
    trained = _PlaidBound(guessed=1.0)(model, x, t, noise, valid).nats
    measured = variational.Variational()(model, x, t, noise, valid).nats
    prior = variational.Variational().ends(model, x, noise, valid).prior * valid
    assert torch.allclose(trained[rows], (measured + prior)[rows], rtol=1e-9)
    assert not torch.allclose(_PlaidBound(guessed=0.0)(model, x, t, noise, valid).nats[rows], trained[rows])


def test_self_conditioning_needs_a_second_call_in_evaluation_not_in_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Plaid(embedding_width=4, self_conditioning=True)
    model, (x, t, noise, _) = small(method), batch()
    calls: list[int] = []
    hidden = model.backbone.hidden

    def counted(*args: Any) -> Tensor:
        calls.append(len(args[0]))
        result: Tensor = hidden(*args)
        return result

    monkeypatch.setattr(model.backbone, "hidden", counted)
    method.measure(11)(model, x, t, noise)
    assert calls == [8, 8]
    calls.clear()
    generate(model, method.sampling_schedule(), method.sampler(11), num=3, length=5, steps=4)
    assert calls == [3] * 4
    calls.clear()
    _PlaidBound(guessed=0.5)(model, x, t, noise)
    assert len(calls) == 2
    assert 0 < calls[0] < calls[1]
    own = model.predict(torch.ones(2, 5, 4).double(), double(0.0).expand(2))
    none = model.predict(torch.ones(2, 5, 4).double(), double(0.0).expand(2), guess=torch.zeros(2, 5, 4).double())
    assert not torch.allclose(own.x_hat, none.x_hat)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_network_is_a_vector_denoiser_and_nothing_else(method: Method) -> None:
    model = small(method)
    assert isinstance(model, protocols.VectorDenoiser)
    assert not isinstance(model, (Denoiser, Score))
    with torch.device("meta"):
        assert all(value.is_meta for value in method.network(NETWORK, Vocabulary(5)).parameters())
    sampler = method.sampler(11)
    for tail in TAILS:
        tokens = generate(model, method.sampling_schedule(), sampler, num=4, length=6, steps=3, tail=tail)
        assert tokens.shape == (4, 6)
        again = generate(model, method.sampling_schedule(), sampler, num=4, length=6, steps=3, tail=tail, batch_size=3)
        assert torch.equal(tokens, again)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_in_bfloat16_only_the_network_has_low_precision(method: Method) -> None:
    """A network whose output is 0 gives 0 in any precision, so its loss is that of float32."""
    x, t, noise, valid = batch()
    for random_weights, tolerance in ((False, 1e-5), (True, 0.1)):
        model = small(method, random_weights=random_weights).float()
        exact = objective_of(method)(model, x, t, noise, valid).nats
        with torch.autocast("cpu", torch.bfloat16):
            coarse = objective_of(method)(model, x, t, noise, valid).nats
        assert torch.allclose(exact, coarse, rtol=tolerance, atol=tolerance)


def test_errors_say_what_is_allowed() -> None:
    for method in (Plaid(), DiffusionLM()):
        with pytest.raises(ValueError, match=r"data\.labels=false"):
            method.network(NETWORK, Vocabulary(5, num_labels=2))
    with pytest.raises(ValueError, match="are allowed"):
        _PlaidBound(share=0.0)
    with pytest.raises(ValueError, match="gamma_min < gamma_max"):
        Plaid(gamma_min=2.0, gamma_max=2.0)
    with pytest.raises(ValueError, match="at least 1"):
        Plaid(embedding_width=0)
    with pytest.raises(ValueError, match="at least 1"):
        DiffusionLM(embedding_width=0)
    with pytest.raises(ValueError, match=r"in \(0, 0\.9\)"):
        DiffusionLM(offset=0.0)
    with pytest.raises(ValueError, match="reads tokens"):
        gaussian.GaussianAncestral().start(torch.nn.Linear(2, 2), 4, 2, Noise.of(0, 0, torch.arange(2)))


def nats_of(method: Method, model: Any, x: Tensor) -> float:
    """Nats per token of the whole text, with fixed noise."""
    noise, measure = Noise.of(1, 0, torch.arange(len(x))), method.measure(256)
    with torch.no_grad():
        ends = measure.ends(model, x, noise)
        nats = measure(model, x, stratified_times(1, 0, len(x)), noise).nats + ends.prior + ends.reconstruction
    return float(nats.mean())


@pytest.mark.parametrize(
    ("method", "goal"), [(Plaid(), 4.2), (DiffusionLM(embedding_width=16, offset=0.3), 5.2)], ids=str
)
def test_training_lowers_the_bound_below_that_of_uniform_bytes(method: Method, goal: float, english: Path) -> None:
    """The bound of uniform bytes is log 256 = 5.55; the entropy of this text's frequencies is 3.3."""
    text = torch.tensor(list(english.read_bytes()))
    x = text[: len(text) // 32 * 32].view(-1, 32)
    torch.manual_seed(0)
    model = method.network(NETWORK, Vocabulary(256))
    objective = method.phases(256, 100)[0].objective
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.99))
    before = nats_of(method, model, x)
    for step in range(100):
        noise = Noise.of(0, step, torch.arange(16))
        rows = (noise.uniform("rows") * len(x)).long()
        loss = objective(model, x[rows], stratified_times(0, step, 16), noise, dropout=True)
        optimizer.zero_grad()
        (loss.total / x[rows].numel()).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    after = nats_of(method, model, x)
    assert after < goal < before


def test_diffusion_lm_trains_rounding_and_squared_error() -> None:
    """L_simple of a network whose output is 0: ||e||^2 / d, the rounding of z_0, and the small signal left at t = 1."""
    model = small(DiffusionLM(embedding_width=8), random_weights=False)
    assert isinstance(model, DiffusionLMDenoiser)
    x, t, noise, _ = batch()
    nats = _SimpleLoss()(model, x, t, noise).nats
    size = model.table[x].square().mean(-1)
    rounding = variational.Variational(even=True).ends(model, x, noise).reconstruction
    assert torch.allclose(nats, (1 + LEAST) * size + rounding, rtol=1e-9)
