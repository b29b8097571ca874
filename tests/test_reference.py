"""The plain implementation (``benchmarks/reference.py``) and the library agree, in value and in gradient, in float64.

The same numbers by two routes: dense tensors from the formulas, and the library's closed and fused forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import reference
from benchmarks.models import frozen_copy, network_of, plain_network
from duality.diffusion import gaussian, posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.methods.ar import AR
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.sedd import SEDD
from duality.networks.dit import DiT
from duality.noise import Noise, stratified_times
from duality.objectives.consistency import Consistency
from duality.objectives.curriculum import TemperedBound
from duality.protocols import Method, Objective
from duality.samplers.psi import _kappa
from duality.training.distillation import DCD

STATES, BATCH, LENGTH = 23, 4, 6
SMALL = DiT(width=16, depth=1, heads=2, time_width=8, dropout=0.0)

NOISE = Noise.of(3, 0, torch.arange(BATCH))
X = NOISE.integers("clean", STATES, LENGTH)
T = stratified_times(3, 0, BATCH)

# denoiser, objective -> reference nats (B, L)
Plain = Callable[[Any, Any], Tensor]


def double_network(method: Method) -> nn.Module:
    """Random float64 weights, large enough for beliefs that differ."""
    denoiser = network_of(method, SMALL, STATES).double()
    for parameter in denoiser.parameters():
        nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return denoiser


def plain_curriculum(denoiser: Any, objective: TemperedBound) -> Tensor:
    """All entries of the latent are kept; w is recovered from the softmax up to a constant, which has no effect."""
    schedule, tau = objective.schedule, objective.tau
    assert objective.num_kept == STATES - 1
    soft, z = gaussian.tempered_latents(X, schedule.mu(T)[:, None], tau, STATES - 1, STATES, NOISE)
    w = tau * torch.zeros(*X.shape, STATES, dtype=torch.float64).scatter(-1, soft.ids, soft.weights).log()
    assert torch.equal(w.argmax(-1), z)
    return reference.curriculum(plain_network(denoiser), w, X, schedule.alpha(T), schedule.alpha_prime(T), tau)


def plain_bound(denoiser: Any, objective: Any) -> Tensor:
    alpha, slope = objective.schedule.alpha(T), objective.schedule.alpha_prime(T)
    z = objective.process.corrupt(X, alpha, NOISE)
    return reference.duo(plain_network(denoiser), z, X, alpha, slope)


def plain_mdlm(denoiser: Any, objective: Any) -> Tensor:
    alpha, slope = objective.schedule.alpha(T), objective.schedule.alpha_prime(T)
    z = objective.process.corrupt(X, alpha, NOISE)
    return reference.mdlm(plain_network(denoiser), z, X, alpha, slope)


def plain_sedd(denoiser: Any, objective: Any) -> Tensor:
    process, alpha, slope = objective.process, objective.schedule.alpha(T), objective.schedule.alpha_prime(T)
    z, masked = process.corrupt(X, alpha, NOISE), isinstance(process, Absorbing)
    return reference.sedd(plain_network(denoiser), z, X, alpha, slope, process.prior(), masked)


def plain_autoregressive(denoiser: Any, _objective: Any) -> Tensor:
    return reference.autoregressive(plain_network(denoiser), X, begin=STATES)


def plain_consistency(denoiser: Any, objective: Consistency) -> Tensor:
    schedule, s = objective.schedule, (T - objective.delta).clamp_min(0.0)
    z_t, z_s = gaussian.coupled_argmax(X, schedule.mu(T)[:, None], schedule.mu(s)[:, None], STATES, NOISE)
    assert not torch.equal(z_t, z_s)  # otherwise the test would not notice exchanged levels
    teacher = plain_network(objective.teacher)
    return reference.dcd(plain_network(denoiser), teacher, z_t, z_s, schedule.alpha(T), schedule.alpha(s))


def distilled(denoiser: Any) -> Objective:
    """A teacher that differs from the student, and a delta large enough for pairs that differ."""
    teacher: Any = frozen_copy(denoiser)
    for parameter in teacher.parameters():
        parameter.mul_(0.7)
    return DCD(rounds=1, delta=0.4, compare="output").phases(Duo(), STATES, teacher)[0].objective


def trained(method: Method, phase: int = 0) -> Callable[[Any], Objective]:
    return lambda _denoiser: method.phases(STATES, 2)[phase].objective


SOFT = Duo(tau=0.4)  # at this temperature the latent keeps all its entries
CASES: dict[str, tuple[Method, Callable[[Any], Objective], Plain]] = {
    "curriculum": (SOFT, trained(SOFT), plain_curriculum),
    "bound": (Duo(), trained(Duo(), phase=1), plain_bound),
    "mdlm": (MDLM(), trained(MDLM()), plain_mdlm),
    "sedd absorbing": (SEDD(), trained(SEDD()), plain_sedd),
    "sedd uniform": (SEDD("uniform"), trained(SEDD("uniform")), plain_sedd),
    "ar": (AR(), trained(AR()), plain_autoregressive),
    "dcd": (Duo(), distilled, plain_consistency),
}


def gradients(denoiser: nn.Module, total: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter, by name; an unused parameter has none."""
    denoiser.zero_grad()
    torch.autograd.backward(total)
    return {name: value.grad.clone() for name, value in denoiser.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("name", CASES)
def test_the_plain_loss_is_the_library_s(name: str) -> None:
    method, objective_of, plain = CASES[name]
    denoiser = double_network(method)
    objective = objective_of(denoiser)
    loss, nats = objective(denoiser, X, T, NOISE), plain(denoiser, objective)
    assert float(nats.detach().max()) > 0.1  # the loss is not trivially 0
    torch.testing.assert_close(nats.detach(), loss.nats, rtol=1e-9, atol=1e-9)
    ours, theirs = gradients(denoiser, loss.total), gradients(denoiser, nats.sum())
    assert ours.keys() == theirs.keys()
    for parameter in ours:
        torch.testing.assert_close(ours[parameter], theirs[parameter], rtol=1e-9, atol=1e-9, msg=parameter)


def test_dense_weights_of_one_token_are_that_token() -> None:
    network = plain_network(double_network(Duo()))
    one_hot = nn.functional.one_hot(X, STATES).double()
    alpha = LogLinear().alpha(T)
    torch.testing.assert_close(network(one_hot, alpha), network(X, alpha), rtol=0, atol=1e-12)


def beliefs(process: Uniform | Absorbing) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """p (B, L, K) as the process allows it, z, and two levels."""
    alpha_t, alpha_s = torch.tensor([0.1, 0.3, 0.5, 0.7]).double(), torch.tensor([0.2, 0.7, 0.6, 0.95]).double()
    z = process.corrupt(X, alpha_t, NOISE)
    logits = NOISE.normal("logits", LENGTH, process.vocab_size)
    masked = isinstance(process, Absorbing)
    log_p = reference.masked_belief(logits, z) if masked else logits.log_softmax(-1)
    return log_p.exp(), z, alpha_t, alpha_s


@pytest.mark.parametrize("process", [Uniform(STATES), Absorbing(STATES + 1)], ids=str)
def test_the_posterior_is_the_library_s(process: Uniform | Absorbing) -> None:
    p, z, alpha_t, alpha_s = beliefs(process)
    got = reference.posterior(p, z, alpha_t, alpha_s, process.prior())
    want = posterior.posterior(p, z, alpha_t[:, None], alpha_s[:, None], process.prior())
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(got.sum(-1), torch.ones(X.shape).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("process", [Uniform(STATES), Absorbing(STATES + 1)], ids=str)
def test_the_psi_posterior_is_the_mixture_of_the_library_s_routes(process: Uniform | Absorbing) -> None:
    p, z, alpha_t, alpha_s = beliefs(process)
    share = _kappa("rescale", 0.3, alpha_t, alpha_s)
    assert bool(((share > 0) & (share < 1)).any())
    p_z, levels = p.gather(-1, z[..., None])[..., 0], (alpha_t[:, None], alpha_s[:, None])
    route_probabilities = posterior.psi_routes(p_z, process.prior_of(z), *levels, share[:, None])
    stay, belief, fresh = (way[..., None] for way in route_probabilities)
    want = stay * nn.functional.one_hot(z, process.vocab_size) + belief * p + fresh * process.prior()
    got = reference.psi_posterior(p, z, alpha_t, alpha_s, process.prior(), share)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def frequencies(values: Tensor, count: int) -> Tensor:
    return torch.bincount(values.flatten(), minlength=count).double() / values.numel()


def test_draws_have_the_law_they_are_given() -> None:
    law = torch.tensor([0.5, 0.0, 0.3, 0.19, 0.01], dtype=torch.float64)
    drawn = reference.draw(law.expand(40_000, 5), torch.Generator().manual_seed(0))
    found = frequencies(drawn, 5)
    assert float((found - law).abs().max()) < 5 * (0.25 / 40_000) ** 0.5
    assert found[1] == 0
    assert abs(float(found[4]) - 0.01) < 5 * (0.01 / 40_000) ** 0.5


@pytest.mark.parametrize("process", [Uniform(5), Absorbing(5)], ids=str)
def test_noise_has_the_law_of_the_process(process: Uniform | Absorbing) -> None:
    alpha, x = torch.tensor([0.3], dtype=torch.float64), torch.full((1, 40_000), 2)
    found = frequencies(reference.corrupt(x, alpha, process.prior(), torch.Generator().manual_seed(0)), 5)
    law = posterior.marginal(nn.functional.one_hot(torch.tensor(2), 5).double(), alpha[0], process.prior())
    assert float((found - law).abs().max()) < 5 * (0.25 / 40_000) ** 0.5


def test_the_argmax_of_the_latent_is_uniform_noise_at_the_level_of_t() -> None:
    mu, x = torch.tensor([1.5], dtype=torch.float64), torch.full((1, 40_000), 2)
    eps = torch.randn(1, 40_000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = reference.gaussian_latent(x, mu, eps)
    alpha = gaussian.level(mu, 5)
    law = posterior.marginal(nn.functional.one_hot(torch.tensor(2), 5).double(), alpha[0], Uniform(5).prior())
    assert float((frequencies(w.argmax(-1), 5) - law).abs().max()) < 5 * (0.25 / 40_000) ** 0.5
    # alpha_tilde^2 + sigma_tilde^2 = 1: the spread of an entry that is noise alone, and the signal on top of it
    assert abs(float(w[..., 0].var()) - 1 / (1 + 1.5**2)) < 0.01
    assert abs(float(w[..., 2].mean()) - 1.5 / (1 + 1.5**2) ** 0.5) < 0.02
