"""Marginal, posterior, evidence and ratios of the interpolating family, for any process.

Every process has the marginal q(z|x) = alpha x + (1 - alpha) prior. With r = alpha_t / alpha_s the posterior is

    q(z_s | z_t, x) = [r 1{z_s = z_t} + (1-r) prior(z_t)] [alpha_s x(z_s) + (1-alpha_s) prior(z_s)]
                      / [alpha_t x(z_t) + (1-alpha_t) prior(z_t)]

``routes`` writes it as a mixture of three draws, so that no K-vector is needed to choose between them. At alpha_s = 1
it is the posterior of the clean token, p(x) q(z_t | x) normalised. As q(z | x) has one value at x = z and another one
everywhere else, only the logit of z changes: ``log_evidence`` is added to it.

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
    """Probabilities of the three routes to z_s: stay, draw from the belief, draw from the prior; they sum to one."""

    stay: Tensor
    belief: Tensor
    prior: Tensor


def routes(p_z: Tensor, prior_z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Routes:
    """The posterior as a mixture: keep z, draw from the belief p, draw from the prior. Needs p and the prior at z only.

    A state outside the prior's support with belief 0 (0 / 0) is kept: absorbing noise never changes a token that is
    not the mask token.
    """
    ratio = alpha_t / alpha_s
    evidence = alpha_t * p_z + (1 - alpha_t) * prior_z
    possible = evidence > 0
    safe = torch.where(possible, evidence, 1.0)
    belief = (alpha_s - alpha_t) * prior_z / safe
    fresh = (1 - ratio) * (1 - alpha_s) * prior_z / safe
    stay = ratio * (alpha_s * p_z + (1 - alpha_s) * prior_z) / safe
    return Routes(torch.where(possible, stay, 1.0), belief, fresh)


def psi_routes(p_z: Tensor, prior_z: Tensor, alpha_t: Tensor, alpha_s: Tensor, kappa: Tensor) -> Routes:
    """The routes of kappa q_s + (1 - kappa) F_s(q_0): a step to s, mixed with one to clean that is made noisy again.

    q_s is the posterior, q_0 the posterior at alpha_s = 1, F_s(q) = alpha_s q + (1 - alpha_s) prior. For a single
    token whose z has the law of level t, both have the law of level s. kappa = 1 is the posterior.
    """
    direct = routes(p_z, prior_z, alpha_t, alpha_s)
    clean = routes(p_z, prior_z, alpha_t, torch.ones_like(alpha_s))
    again = 1 - kappa
    return Routes(
        kappa * direct.stay + again * alpha_s * clean.stay,
        kappa * direct.belief + again * alpha_s * clean.belief,
        kappa * direct.prior + again * (1 - alpha_s),
    )


def log_ratios(p: Tensor, z: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """log of rho(y) = q(y | p) / q(z | p) for all states y, (..., K); 0 at y = z."""
    log_q = marginal(p, alpha, prior).log()
    return log_q - log_q.gather(-1, z[..., None])


def analytic(log_ratios: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, prior: Tensor) -> Tensor:
    """SEDD's analytic (Tweedie) step: (unnormalised) probabilities of z_s from the ratios at z_t, (..., K).

    q_s(y) / q_t(z) is the ratio with the last stretch of noise taken back, (ratio(y) - (1-r) prior(y) sum ratios) / r,
    times the forward transition from y to z. The posterior at p if the ratios are those of p. A learnt score may make
    entries negative: they count as 0.
    """
    r, law = (alpha_t / alpha_s)[..., None], log_ratios.exp()
    renewed = (1 - r).to(law) * law.sum(-1, keepdim=True)
    law.addcmul_(renewed, prior.to(law), value=-1)
    # forward from y to z: (1-r) prior(z) whatever y is, and r more from z itself
    stay = law.gather(-1, z[..., None])
    law.mul_(((1 - r) / r * prior[z][..., None]).to(law))
    return law.scatter_add_(-1, z[..., None], stay).clamp_min_(0.0)


def log_evidence(prior_z: Tensor, alpha: Tensor) -> Tensor:
    """log q(z | x = z) / q(z | any other x) = log(1 + alpha / ((1 - alpha) prior(z))): what z says of its own token.

    With it, log_softmax(log p + evidence one_hot(z)) is the posterior of the clean token. 0 at alpha = 0. Infinite
    where no other token becomes z: at alpha = 1, and outside the prior's support.
    """
    other = (1 - alpha) * prior_z
    possible = other > 0
    return torch.where(possible, torch.log1p(alpha / torch.where(possible, other, 1.0)), torch.inf)


def prior_gap(alpha: Tensor, prior: Tensor, x: Tensor) -> Tensor:
    """KL(q(z_1 | x) || prior) per token: the cost of a last level that is not pure noise.

    For absorbing noise it is 0 at alpha = 0 and infinite otherwise: the prior excludes every other state.
    """
    prior_x = prior[x]
    q_x = alpha + (1 - alpha) * prior_x
    own = torch.xlogy(q_x, q_x) - torch.xlogy(q_x, prior_x)
    return own + torch.xlogy((1 - alpha) * (1 - prior_x), 1 - alpha)


def reconstruction(p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """-log q(x | z_0, p) per token: the cost of a first level that is not clean. 0 at alpha = 1."""
    probs = posterior(p, z, alpha, torch.ones_like(alpha), prior)
    return -probs.gather(-1, x[..., None])[..., 0].log()
