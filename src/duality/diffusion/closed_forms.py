"""Continuous-time bounds and T-step divergences per token: in general, and in closed form where there is one.

The bound on -log p(x), per token and unit of time, with ratios rho(y) = q(y|x) / q(z|x), is

    (-alpha'/alpha) prior(z) sum_{y != z} [rho_model(y) - rho(y) + rho(y) log(rho(y) / rho_model(y))]

for any process and any parametrisation (``bound``). The closed forms need one reduction over the vocabulary. A function
``..._nats`` computes nats from the reduced numbers of a token, in float64; the reduction itself is fused with the
output head (``fused.formulas``). ``uniform_bound`` is the closed form of a dense belief, to call on its own.

Shapes: log-probabilities are (..., K); ``x``, ``z`` are (...); levels broadcast against ``z`` (usually (B, 1)) and stay
float64, because 1 - alpha must survive near alpha = 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from duality.diffusion.posterior import marginal


def bound(log_ratios_model: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor, prior: Tensor) -> Tensor:
    """The continuous-time bound per token from a model's ratios: any process, any parametrisation."""
    num_states = log_ratios_model.shape[-1]
    prior_z = prior[z]
    one_hot = F.one_hot(x, num_states).to(log_ratios_model.dtype)
    ratio = marginal(one_hot, alpha, prior)
    ratio = ratio / ratio.gather(-1, z[..., None])
    surprise = torch.xlogy(ratio, ratio) - torch.where(ratio > 0, ratio * log_ratios_model, 0.0)
    terms = log_ratios_model.exp() - ratio + surprise
    terms = terms.scatter(-1, z[..., None], 0.0)
    # Outside the prior's support the rate is zero: such a token is certain, whatever its ratios.
    return torch.where(prior_z > 0, -alpha_prime / alpha * prior_z * terms.sum(-1), 0.0)


def absorbing_weight(alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """-alpha'/(1 - alpha): the rate at which a mask token becomes a token, MDLM's weight of its cross-entropy."""
    return -alpha_prime / (1 - alpha).clamp_min(2.0**-53)


def score_nats_uniform(
    positive: Tensor, total: Tensor, at_x: Tensor, equal: Tensor, alpha: Tensor, alpha_prime: Tensor, num_states: int
) -> Tensor:
    """SEDD's loss for uniform noise, from the sums over y != z of a token's ratios and of their logarithms.

    The data's ratios are one number except at one state: with e = (1 - alpha) / (1 - alpha + K alpha), they are all e
    if z = x, and 1 except 1/e at x otherwise. Rate -alpha'/(K alpha).
    """
    small = (1 - alpha).clamp_min(2.0**-53) / (1 - alpha + num_states * alpha)
    same = positive - small * total + (num_states - 1) * (torch.xlogy(small, small) - small)
    own = -small.log() / small - 1 / small
    other = positive - total - (1 / small - 1) * at_x + own - (num_states - 2)
    return -alpha_prime / (num_states * alpha) * torch.where(equal, same, other)


def score_nats_absorbing(positive: Tensor, at_x: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """SEDD's loss of a mask token, from the sum of its ratios and the log ratio of x.

    The data's only ratio is alpha / (1 - alpha), at x. Rate -alpha'/alpha.
    """
    rest = (1 - alpha).clamp_min(2.0**-53)
    # (-alpha'/alpha) [positive - r at_x + r log r - r] with r = alpha / (1 - alpha); r / alpha is 1 / (1 - alpha)
    own = (alpha.log() - rest.log() - 1 - at_x) / rest
    return -alpha_prime * (positive / alpha + own)


def uniform_bound(log_p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """The bound for uniform noise in closed form: one reduction over the vocabulary, no K-vector of the data.

    With kappa = K alpha / (1 - alpha), l_j = log(1 + kappa p_j), R = sum_j l_j and l_1 = log(1 + kappa), the bound is
    -alpha'/(K alpha) times

        z = x :  [K l_z - R - (K-1) l_1] / (1 + kappa)           + K/(1-alpha) [1/(1 + kappa p_z) - 1/(1 + kappa)]
        z != x:  K l_z - R + l_1 + kappa (l_1 - l_x + l_z)       + K/(1-alpha) [1/(1 + kappa p_z) - 1]

    This is the paper's Rao-Blackwellised loss with log(1 - alpha), which is in every term, cancelled by hand. R is
    computed in the precision of ``log_p``; everything else is one number per token in float64, because kappa is large.
    """
    num_states = log_p.shape[-1]
    total = _log_count(log_p, odds(alpha, num_states))
    log_p_z, log_p_x = (log_p.gather(-1, state[..., None])[..., 0].double() for state in (z, x))
    return uniform_nats(total, log_p_z, log_p_x, z == x, alpha, alpha_prime, num_states)


def odds(alpha: Tensor, num_states: int) -> Tensor:
    """kappa = K alpha / (1 - alpha), of signal to uniform noise."""
    # alpha within rounding of 1 counts as the largest float64 below it: times that small do occur, rarely.
    return num_states * alpha / (1 - alpha).clamp_min(2.0**-53)


def _log_count(log_p: Tensor, kappa: Tensor) -> Tensor:
    """R = sum_j log(1 + kappa p_j), the one reduction over the vocabulary: between kappa and K log(1 + kappa / K)."""
    u = kappa.to(log_p.dtype)[..., None] * log_p.exp()
    return torch.where(kappa < SMALL_ODDS, kappa - second_order(u), torch.log1p(u).sum(-1).double())


SMALL_ODDS = 0.01  # below it the series of ``second_order`` is exact to 1e-12


def second_order(u: Tensor) -> Tensor:
    """sum_j [u_j - log(1 + u_j)] of small u (..., K) by its series, float64: the part of R that stays in the bound.

    The sum of u is kappa itself, because a belief sums to one; this first order cancels in the bound.
    """
    return u.square().mul_(0.5 - u * (1 / 3 - u * (0.25 - u / 5))).sum(-1).double()


def uniform_nats(
    total: Tensor, log_p_z: Tensor, log_p_x: Tensor, same: Tensor, alpha: Tensor, alpha_prime: Tensor, num_states: int
) -> Tensor:
    """``uniform_bound`` from the numbers of a token: R, log p at z and at x, and whether z = x."""
    kappa, scale = odds(alpha, num_states), num_states / (1 - alpha).clamp_min(2.0**-53)
    p_z = log_p_z.exp()
    l_one, l_z, l_x = torch.log1p(kappa), torch.log1p(kappa * p_z), torch.log1p(kappa * log_p_x.exp())
    damped = 1 + kappa * p_z
    kept = (num_states * l_z - total - (num_states - 1) * l_one) / (1 + kappa)
    # 1/(1 + kappa p) - 1/(1 + kappa) over a common denominator, with 1 - p as -expm1(log p)
    kept = kept - scale * kappa * torch.expm1(log_p_z) / (damped * (1 + kappa))
    other = num_states * l_z - total + l_one + kappa * (l_one - l_x + l_z) - scale * kappa * p_z / damped
    return -alpha_prime / (num_states * alpha) * torch.where(same, kept, other)


def uniform_divergence_nats(
    total: Tensor, log_p_z: Tensor, log_p_x: Tensor, equal: Tensor, alpha_t: Tensor, alpha_s: Tensor, num_states: int
) -> Tensor:
    """KL(q(z_s | z_t, x) || q(z_s | z_t, p)) per token for uniform noise, from the numbers of ``uniform_nats`` at s.

    The posterior given x takes one value c except at z and x, so the sum over states is c (log(1 + kappa_s) - R) and
    corrections at the two. At alpha_s = 1 it is -log p(x | z).
    """
    rest_t, rest_s = ((1 - alpha).clamp_min(2.0**-53) for alpha in (alpha_t, alpha_s))
    kappa_t, kappa_s = odds(alpha_t, num_states), odds(alpha_s, num_states)
    p_z, p_x, same = log_p_z.exp(), log_p_x.exp(), equal.double()
    evidence = rest_t * (1 + kappa_t * same)  # K q(z_t | x)
    ratio = alpha_t / alpha_s
    common = (1 - ratio) * rest_s / num_states / evidence
    at_z = (ratio + (1 - ratio) / num_states) * rest_s * (1 + kappa_s * same) / evidence
    at_x = common * (1 + kappa_s)
    log_one = torch.log1p(kappa_s)
    gain_z = log_one * same - torch.log1p(kappa_s * p_z)
    gain_x = log_one - torch.log1p(kappa_s * p_x)
    loss_of_nats = common * (log_one - total) + (at_z - common) * gain_z + (1 - same) * (at_x - common) * gain_x
    return loss_of_nats + torch.log1p(kappa_t * p_z) - torch.log1p(kappa_t) * same


def shown_chance(alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The probability that a mask token at t is a token at s: D3PM's weight of its cross-entropy."""
    return (alpha_s - alpha_t) / (1 - alpha_t)
