"""The closed forms of MDLM, SEDD, UDLM, Duo and D3PM are the general bound, and they give the released tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import plain_forms
from torch import Tensor

from duality.diffusion import closed_forms, posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.fused.lazy import _belief_from
from duality.objectives.discrete_time import DiscreteTimeBound
from duality.protocols import Process

LEVELS = [1e-6, 0.03, 0.5, 0.97, 1 - 1e-6]


def batch(process: Process, alpha: float, count: int = 60) -> dict[str, Tensor]:
    """Random beliefs, clean tokens and noisy ones, of which a third are clean."""
    generator = torch.Generator().manual_seed(int(1e6 * alpha) % 1000)
    num_states = process.vocab_size
    num_tokens = num_states - 1 if isinstance(process, Absorbing) else num_states
    logits = 2 * torch.randn(count, num_tokens, generator=generator, dtype=torch.float64)
    log_p = F.pad(torch.log_softmax(logits, -1), (0, num_states - num_tokens), value=-torch.inf)
    x = torch.randint(0, num_tokens, (count,), generator=generator)
    other = (
        torch.full((count,), process.mask_id)
        if isinstance(process, Absorbing)
        else torch.randint(0, num_states, (count,), generator=generator)
    )
    z = torch.where(torch.rand(count, generator=generator) < 1 / 3, x, other)
    ratios = torch.randn(count, num_states, generator=generator, dtype=torch.float64).scatter(-1, z[:, None], 0.0)
    level = torch.full((count,), alpha, dtype=torch.float64)
    slope = -0.1 - torch.rand(count, generator=generator, dtype=torch.float64)
    return {"log_p": log_p, "x": x, "z": z, "ratios": ratios, "alpha": level, "slope": slope}


def general(process: Process, case: dict[str, Tensor], ratios: Tensor) -> Tensor:
    return closed_forms.bound(ratios, case["x"], case["z"], case["alpha"], case["slope"], process.prior())


def assert_close(got: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    assert torch.isfinite(expected).all()
    assert ((got - expected).abs() <= tolerance * (1 + expected.abs())).all(), (got - expected).abs().max()


@pytest.mark.parametrize("alpha", LEVELS)
def test_mdlm_is_the_general_bound(alpha: float) -> None:
    process = Absorbing(12)
    case = batch(process, alpha)
    masked = case["z"] == process.mask_id
    # An unmasked token is certain: SUBS puts that into the belief; the general bound has rate 0 there for any belief.
    ratios = posterior.log_ratios(case["log_p"].exp(), case["z"], case["alpha"], process.prior())
    got = plain_forms.absorbing_bound(case["log_p"], case["x"], masked, case["alpha"], case["slope"])
    assert_close(got, general(process, case, torch.where(masked[:, None], ratios, 0.0)))
    assert (got[~masked] == 0).all()
    assert (got[masked] > 0).all()


@pytest.mark.parametrize("alpha", LEVELS)
def test_sedd_absorb_is_the_general_bound(alpha: float) -> None:
    process = Absorbing(12)
    case = batch(process, alpha)
    masked = case["z"] == process.mask_id
    # ratios of a realistic size: alpha / (1 - alpha) over the tokens
    ratios = case["ratios"] + torch.log(case["alpha"] / (1 - case["alpha"]))[:, None]
    ratios = ratios.scatter(-1, case["z"][:, None], 0.0)
    got = plain_forms.score_entropy_absorbing(ratios, case["x"], masked, case["alpha"], case["slope"])
    assert_close(got, general(process, case, ratios))


@pytest.mark.parametrize("alpha", LEVELS)
def test_sedd_uniform_is_the_general_bound(alpha: float) -> None:
    process = Uniform(12)
    case = batch(process, alpha)
    got = plain_forms.score_entropy_uniform(case["ratios"], case["x"], case["z"], case["alpha"], case["slope"])
    assert_close(got, general(process, case, case["ratios"]))


@pytest.mark.parametrize("alpha", LEVELS)
@pytest.mark.parametrize("form", [closed_forms.uniform_bound, plain_forms.dense_uniform_bound])
def test_udlm_and_duo_are_the_general_bound(form: Any, alpha: float) -> None:
    process = Uniform(12)
    case = batch(process, alpha)
    ratios = posterior.log_ratios(case["log_p"].exp(), case["z"], case["alpha"], process.prior())
    got = form(case["log_p"], case["x"], case["z"], case["alpha"], case["slope"])
    assert_close(got, general(process, case, ratios), 1e-9)


@pytest.mark.parametrize("process", [Uniform(12), Absorbing(12)], ids=str)
@pytest.mark.parametrize("alpha", [0.03, 0.5, 0.97])
def test_scores_and_beliefs_convert_into_each_other(process: Process, alpha: float) -> None:
    case = batch(process, alpha)
    prior, p = process.prior(), case["log_p"].exp()
    z = torch.full_like(case["z"], process.vocab_size - 1)  # the mask token, or any token
    ratios = posterior.log_ratios(p, z, case["alpha"], prior)
    assert torch.allclose(plain_forms.belief_of_ratios(ratios, case["alpha"], prior), p, atol=1e-13)
    again = posterior.log_ratios(plain_forms.belief_of_ratios(ratios, case["alpha"], prior), z, case["alpha"], prior)
    finite = ratios > -30
    assert torch.allclose(again[finite], ratios[finite], atol=1e-11)
    # ... and SEDD's step with the ratios of p is the posterior at p
    for alpha_s in (case["alpha"] + (1 - case["alpha"]) / 3, torch.ones_like(case["alpha"])):
        step = posterior.analytic(ratios, z, case["alpha"], alpha_s, prior)
        expected = posterior.posterior(p, z, case["alpha"], alpha_s, prior)
        assert torch.allclose(step, expected, atol=1e-12)


def dense_divergence(log_p: Tensor, x: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, prior: Tensor) -> Tensor:
    """KL between the two dense posteriors."""
    truth = posterior.posterior(F.one_hot(x, len(prior)).double(), z, alpha_t, alpha_s, prior)
    model = posterior.posterior(log_p.exp(), z, alpha_t, alpha_s, prior)
    return torch.where(truth > 0, truth * (truth / model).log(), 0.0).sum(-1)


def closed_divergence(process: Any, case: dict[str, Tensor], level_s: Tensor) -> Tensor:
    """The objective's divergence, of a materialised belief."""
    x, z, alpha = (case[name][None] for name in ("x", "z", "alpha"))
    objective = DiscreteTimeBound(process, LogLinear())
    return objective.divergence(_belief_from(case["log_p"][None]), x, z, alpha, level_s[None], 1, None).nats[0]


@pytest.mark.parametrize("process", [Uniform(12), Absorbing(12)], ids=str)
@pytest.mark.parametrize(("alpha_t", "alpha_s"), [(0.0, 0.01), (0.2, 0.7), (0.6, 0.6001), (0.4, 1.0), (0.9, 0.999)])
def test_d3pm_divergence_is_the_posteriors(process: Any, alpha_t: float, alpha_s: float) -> None:
    case = batch(process, alpha_t)
    level_s = torch.full_like(case["alpha"], alpha_s)
    got = closed_divergence(process, case, level_s)
    loss_positions = (
        case["z"] == process.mask_id if isinstance(process, Absorbing) else torch.ones_like(case["z"], dtype=torch.bool)
    )
    expected = dense_divergence(case["log_p"], case["x"], case["z"], case["alpha"], level_s, process.prior())
    assert ((got - expected).abs()[loss_positions] <= 1e-12 * (1 + expected.abs()[loss_positions])).all()
    assert (got[~loss_positions] == 0).all()


@pytest.mark.parametrize("process", [Uniform(12), Absorbing(12)], ids=str)
def test_d3pm_approaches_the_continuous_bound_as_one_over_t(process: Any) -> None:
    """T KL(alpha_t, alpha_s) tends to the bound's density at t; ten times the steps give a tenth of the distance."""
    case = batch(process, 0.4)
    ratios = posterior.log_ratios(case["log_p"].exp(), case["z"], case["alpha"], process.prior())
    if isinstance(process, Absorbing):
        ratios = torch.where((case["z"] == process.mask_id)[:, None], ratios, 0.0)
    slope = torch.full_like(case["slope"], -1.0)  # LogLinear(0): alpha = 1 - t
    limit = closed_forms.bound(ratios, case["x"], case["z"], case["alpha"], slope, process.prior())
    errors = []
    for steps in (100, 1000, 10_000):
        level_s = case["alpha"] + 1 / steps
        term = closed_divergence(process, case, level_s)
        errors.append(float((steps * term - limit).abs().sum()))
    if isinstance(process, Absorbing):
        # Here the density is the same at every T, as (alpha_s - alpha_t) / (1 - alpha_t) is linear in 1/T; only the
        # time at which it is taken depends on T.
        assert max(errors) < 1e-8
    else:
        assert errors[0] > 1e-3
        assert errors[0] / errors[1] == pytest.approx(10, rel=0.1)
        assert errors[1] / errors[2] == pytest.approx(10, rel=0.1)


def load(golden: Path, name: str) -> dict[str, Tensor]:
    data = np.load(golden / f"{name}.npz")
    tensors = {key: torch.from_numpy(data[key]) for key in data.files if data[key].shape}
    meta = json.loads(str(data["__meta__"]))
    assert meta["mask_index"] == meta["V"] - 1
    return tensors


def test_released_mdlm_loss(golden: Path) -> None:
    data = load(golden, "nelbo_mdlm_K27")
    logits = data["logits"].double().requires_grad_()
    log_p = torch.log_softmax(logits[..., :27], -1)
    alpha, slope = data["alpha_t"].double(), data["dalpha_t"].double()
    loss = plain_forms.absorbing_bound(log_p, data["x0"], data["xt"] == 27, alpha, slope)
    assert torch.allclose(loss, data["loss_f64"], rtol=1e-6, atol=1e-6)  # their alphas are float32
    torch.autograd.backward(loss.sum())
    assert logits.grad is not None
    assert torch.allclose(logits.grad, data["grad_logits_f64"], rtol=1e-5, atol=1e-6)


def test_released_mdlm_posteriors(golden: Path) -> None:
    data = load(golden, "posterior_mdlm_K27")
    prior = Absorbing(28).prior()
    p = data["log_x_theta"].double().exp()
    masked = data["xt"] == 27
    expected = data["q_xs_f64"]
    alpha_t, alpha_s = data["alpha_t"].double(), data["alpha_s"].double()
    got = posterior.posterior(p, data["xt"], alpha_t, alpha_s, prior)
    assert torch.allclose(got[masked], expected[masked] / expected[masked].sum(-1, keepdim=True), atol=2e-6)
    assert torch.allclose(got[~masked], F.one_hot(data["xt"], 28).double()[~masked], atol=1e-6)


def test_released_sedd_loss(golden: Path) -> None:
    data = load(golden, "nelbo_sedd_K27")
    alpha, slope = (-data["sigma"].double()).exp(), data["dalpha_t"].double()
    logits = data["logits"].double().requires_grad_()
    scale = torch.log(alpha / ((1 - alpha) * 27))[..., None]
    ratios = (logits + scale).scatter(-1, data["xt"][..., None], 0.0)
    loss = plain_forms.score_entropy_absorbing(ratios, data["x0"], data["xt"] == 27, alpha, slope)
    assert torch.allclose(loss, data["loss_f64"], rtol=1e-5, atol=1e-5)
    torch.autograd.backward(loss.sum())
    assert logits.grad is not None
    assert torch.allclose(logits.grad, data["grad_logits_f64"], rtol=1e-4, atol=1e-5)


def test_released_sedd_steps(golden: Path) -> None:
    data = load(golden, "posterior_sedd_K27")
    prior = Absorbing(28).prior()
    alpha_t = (-data["sigma_t"].double()).exp()
    scale = torch.log(alpha_t / ((1 - alpha_t) * 27))[..., None]
    ratios = (data["logits"].double() + scale).scatter(-1, data["xt"][..., None], 0.0)
    got = posterior.analytic(ratios, data["xt"], alpha_t, (-data["sigma_s"].double()).exp(), prior)
    expected = data["analytic_probs_f64"].clamp_min(0.0)
    masked = data["xt"] == 27
    assert torch.allclose(got[masked], expected[masked], rtol=1e-4, atol=1e-6)
    # An unmasked token stays for any score. Theirs gives other tokens a score there, which the forward process forbids.
    assert torch.equal(got[~masked].argmax(-1), data["xt"][~masked])


def test_released_d3pm_divergence(golden: Path) -> None:
    """Their alpha_s is t - 1/T, which is no level of the log-linear schedule: compared with the corrected value.

    Their belief leaves mass on the mask token, which no text contains; ours (SUBS) has none. So the released numbers
    check the dense divergence, with their belief, and our closed form is checked against the dense divergence.
    """
    data = load(golden, "nelbo_d3pm_K27")
    prior, masked = Absorbing(28).prior(), data["xt"] == 27
    alpha_t = data["alpha_t"].double()
    alpha_s = alpha_t + 1e-3  # 1 / T later in a chain whose level falls by 1 in T steps
    log_p = data["log_x_theta_f64"]
    got = 1000 * dense_divergence(log_p, data["x0"], data["xt"], alpha_t, alpha_s, prior)
    expected = data["diffusion_loss_alpha_s_fixed_f64"]
    assert torch.allclose(got[masked], expected[masked], rtol=1e-4, atol=1e-4)  # their alphas are float32
    assert (expected[~masked].abs() < 1e-2).all()
    subs = F.pad(torch.log_softmax(log_p[..., :27], -1), (0, 1), value=-torch.inf)
    closed = plain_forms.absorbing_divergence(subs, data["x0"], masked, alpha_t, alpha_s)
    dense = dense_divergence(subs, data["x0"], data["xt"], alpha_t, alpha_s, prior)
    assert torch.allclose(closed[masked], dense[masked], rtol=1e-12)


def test_released_autoregressive_loss(golden: Path) -> None:
    """The last state (their mask token, our beginning of a sequence) is never predicted."""
    data = load(golden, "nelbo_ar_K27")
    log_p = torch.log_softmax(data["logits"].double()[..., :27], -1)
    got = -log_p.gather(-1, data["output_tokens"][..., None])[..., 0]
    assert torch.allclose(got, data["loss"].double(), atol=1e-5)


@pytest.mark.parametrize("num_states", [2, 27, 1000])
@pytest.mark.parametrize("alpha", [1e-8, 1e-6, 1e-4, 4e-3, 1e-2, 0.5, 0.999])
def test_the_closed_form_of_a_float32_belief_is_precise_at_every_level(num_states: int, alpha: float) -> None:
    """At small alpha the first orders cancel: what is left must not be rounding."""
    generator = torch.Generator().manual_seed(0)
    log_p = torch.log_softmax(torch.randn(400, num_states, generator=generator, dtype=torch.float64), -1)
    x, z = (torch.randint(0, num_states, (400,), generator=generator) for _ in range(2))
    level = torch.full((400,), alpha, dtype=torch.float64)
    exact, single = (
        closed_forms.uniform_bound(each, x, z, level, -torch.ones_like(level)) for each in (log_p, log_p.float())
    )
    assert float((single - exact).norm() / exact.norm()) < 1e-5
