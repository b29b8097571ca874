"""The mathematics of the interpolating family, as pure functions.

Both processes have the marginal q(z|x) = alpha x + (1 - alpha) prior; with r = alpha_t / alpha_s the posterior is

    q(z_s | z_t, x) = [r 1{z_s = z_t} + (1-r) prior(z_t)] [alpha_s x(z_s) + (1-alpha_s) prior(z_s)]
                      / [alpha_t x(z_t) + (1-alpha_t) prior(z_t)]

and the continuous-time bound on -log p(x), per token and unit of time, with ratios rho(y) = q(y|x) / q(z|x), is

    (-alpha'/alpha) prior(z) sum_{y != z} [rho_model(y) - rho(y) + rho(y) log(rho(y) / rho_model(y))].

Shapes: a belief ``p`` is (..., K); ``x``, ``z`` are (...); levels broadcast against ``z`` (usually (B, 1), float64).
Levels stay float64 until they meet a (..., K) tensor, because 1 - alpha must survive near alpha = 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def marginal(x: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """q(z | x) for a clean belief ``x`` (..., K) on the simplex."""
    return alpha[..., None] * x + (1 - alpha[..., None]) * prior


def posterior(p: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, prior: Tensor) -> Tensor:
    """q(z_s | z_t = z, x = p), dense (..., K): the reference for the routes below."""
    ratio = (alpha_t / alpha_s)[..., None]
    stay = F.one_hot(z, p.shape[-1]).to(p.dtype)
    forward = ratio * stay + (1 - ratio) * prior[z][..., None]
    evidence = marginal(p, alpha_t, prior).gather(-1, z[..., None])
    return forward * marginal(p, alpha_s, prior) / evidence


class Routes(NamedTuple):
    """Probabilities of the three ways to draw z_s; they sum to one."""

    stay: Tensor
    belief: Tensor
    prior: Tensor


def routes(p_z: Tensor, prior_z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Routes:
    """The posterior as a mixture: keep z, draw from the belief p, draw from the prior. Needs p and the prior at z only.

    A state outside the prior's support with no belief in it (0 / 0) is kept: absorbing noise never changes a
    token that is not the mask.
    """
    ratio = alpha_t / alpha_s
    evidence = alpha_t * p_z + (1 - alpha_t) * prior_z
    possible = evidence > 0
    safe = torch.where(possible, evidence, 1.0)
    belief = (alpha_s - alpha_t) * prior_z / safe
    fresh = (1 - ratio) * (1 - alpha_s) * prior_z / safe
    stay = ratio * (alpha_s * p_z + (1 - alpha_s) * prior_z) / safe
    return Routes(torch.where(possible, stay, 1.0), belief, fresh)


def log_ratios(p: Tensor, z: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """log of rho(y) = q(y | p) / q(z | p) for all states y, (..., K); 0 at y = z."""
    log_q = marginal(p, alpha, prior).log()
    return log_q - log_q.gather(-1, z[..., None])


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


def uniform_bound(log_p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """The bound for uniform noise in closed form: one reduction over the vocabulary, no K-vector of the data.

    With kappa = K alpha / (1 - alpha), l_j = log(1 + kappa p_j), R = sum_j l_j and l_1 = log(1 + kappa), the bound is
    -alpha'/(K alpha) times

        z = x :  [K l_z - R - (K-1) l_1] / (1 + kappa)           + K/(1-alpha) [1/(1 + kappa p_z) - 1/(1 + kappa)]
        z != x:  K l_z - R + l_1 + kappa (l_1 - l_x + l_z)       + K/(1-alpha) [1/(1 + kappa p_z) - 1]

    This is the paper's Rao-Blackwellised loss with log(1 - alpha), which is in every term, cancelled by hand. R is
    taken in the precision of ``log_p``; all else is one number per token, and float64, because kappa is large.
    """
    num_states = log_p.shape[-1]
    # alpha within rounding of 1 counts as the largest float64 below it: times that small do occur, rarely.
    rest = (1 - alpha).clamp_min(2.0**-53)
    kappa, scale = num_states * alpha / rest, num_states / rest
    total = torch.log1p(kappa.to(log_p.dtype)[..., None] * log_p.exp()).sum(-1).double()
    log_p_z, log_p_x = (log_p.gather(-1, state[..., None])[..., 0].double() for state in (z, x))
    p_z = log_p_z.exp()
    l_one, l_z, l_x = torch.log1p(kappa), torch.log1p(kappa * p_z), torch.log1p(kappa * log_p_x.exp())
    damped = 1 + kappa * p_z
    same = (num_states * l_z - total - (num_states - 1) * l_one) / (1 + kappa)
    # 1/(1 + kappa p) - 1/(1 + kappa) over a common denominator, with 1 - p as -expm1(log p)
    same = same - scale * kappa * torch.expm1(log_p_z) / (damped * (1 + kappa))
    other = num_states * l_z - total + l_one + kappa * (l_one - l_x + l_z) - scale * kappa * p_z / damped
    return -alpha_prime / (num_states * alpha) * torch.where(z == x, same, other)


def prior_gap(alpha: Tensor, prior: Tensor, x: Tensor) -> Tensor:
    """KL(q(z_1 | x) || prior) per token: what the bound pays because the last level is not pure noise.

    For absorbing noise it is 0 at alpha = 0 and infinite otherwise: the prior cannot make an unmasked token.
    """
    prior_x = prior[x]
    q_x = alpha + (1 - alpha) * prior_x
    own = torch.xlogy(q_x, q_x) - torch.xlogy(q_x, prior_x)
    return own + torch.xlogy((1 - alpha) * (1 - prior_x), 1 - alpha)


def reconstruction(p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """-log q(x | z_0, p) per token: what the bound pays because the first level is not clean. 0 at alpha = 1."""
    probs = posterior(p, z, alpha, torch.ones_like(alpha), prior)
    return -probs.gather(-1, x[..., None])[..., 0].log()


def categorical(probs: Tensor, u: Tensor) -> Tensor:
    """Exact draw from rows of (unnormalised) ``probs`` (..., K) by inverting the float64 distribution function at u.

    float32 Gumbel noise would cut the tail off; here a state of probability 0 is never drawn and a state of
    probability 1e-12 is drawn that often.
    """
    cdf = probs.to(torch.float64).cumsum(-1)
    total = cdf[..., -1:]
    # Rounding may lift u * total to total itself, where no state is left to choose.
    target = torch.minimum(u[..., None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, target, right=True)[..., 0]
