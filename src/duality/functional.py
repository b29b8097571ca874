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


_BLOCK = 256


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


def psi_routes(p_z: Tensor, prior_z: Tensor, alpha_t: Tensor, alpha_s: Tensor, kappa: Tensor) -> Routes:
    """The routes of kappa q_s + (1 - kappa) F_s(q_0): a step to s, mixed with one to clean that is made noisy again.

    q_s is the posterior, q_0 the posterior at alpha_s = 1, F_s(q) = alpha_s q + (1 - alpha_s) prior. For a single
    token, if z has the law of level t both have that of level s: kappa is how little is drawn anew, 1 the posterior.
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


def dense_uniform_bound(log_p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """The bound for uniform noise as UDLM writes it, with both K-vectors made (the paper's Eq. 31, sign corrected).

    With x_bar = K alpha x + 1 - alpha and p_bar likewise from the belief:
    alpha'/(K alpha) [K / x_bar_z - K / p_bar_z - sum_j (x_bar_j / x_bar_z) log(p_bar_z x_bar_j / (p_bar_j x_bar_z))].
    """
    num_states = log_p.shape[-1]
    level = alpha[..., None].to(log_p.dtype)
    rest = (1 - alpha).clamp_min(2.0**-53)[..., None].to(log_p.dtype)
    x_bar = num_states * level * F.one_hot(x, num_states).to(log_p.dtype) + rest
    p_bar = num_states * level * log_p.exp() + rest
    x_bar_z, p_bar_z = (bar.gather(-1, z[..., None]) for bar in (x_bar, p_bar))
    ratio = x_bar / x_bar_z
    surprise = (ratio * (p_bar_z.log() - p_bar.log() + ratio.log())).sum(-1)
    terms = (num_states / x_bar_z - num_states / p_bar_z)[..., 0] - surprise
    return alpha_prime / (num_states * alpha) * terms


def absorbing_bound(log_p: Tensor, x: Tensor, hidden: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """The bound for absorbing noise: MDLM's weighted cross-entropy -alpha'/(1 - alpha) (-log p_x) where hidden."""
    log_p_x = log_p.gather(-1, x[..., None])[..., 0].double()
    return torch.where(hidden, -absorbing_weight(alpha, alpha_prime) * log_p_x, 0.0)


def absorbing_weight(alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """-alpha'/(1 - alpha): the rate at which a hidden token is shown."""
    return -alpha_prime / (1 - alpha).clamp_min(2.0**-53)


def score_entropy_uniform(log_ratios: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """SEDD's loss for uniform noise, with the sums over the data's ratios in closed form.

    The data's ratios are one number but at one state: with e = (1 - alpha) / (1 - alpha + K alpha), they are all e if
    z = x, and 1 but for 1/e at x otherwise. Rate -alpha'/(K alpha).
    """
    # log_ratios is 0 at z, so only exp needs the state z taken out
    positive = log_ratios.exp().sum(-1).double() - 1
    total = log_ratios.sum(-1).double()
    at_x = log_ratios.gather(-1, x[..., None])[..., 0].double()
    return score_nats_uniform(positive, total, at_x, z == x, alpha, alpha_prime, log_ratios.shape[-1])


def score_nats_uniform(
    positive: Tensor, total: Tensor, at_x: Tensor, equal: Tensor, alpha: Tensor, alpha_prime: Tensor, num_states: int
) -> Tensor:
    """``score_entropy_uniform`` from its numbers per token: sums of ratios and of their logarithms, y != z."""
    small = (1 - alpha).clamp_min(2.0**-53) / (1 - alpha + num_states * alpha)
    same = positive - small * total + (num_states - 1) * (torch.xlogy(small, small) - small)
    own = -small.log() / small - 1 / small
    other = positive - total - (1 / small - 1) * at_x + own - (num_states - 2)
    return -alpha_prime / (num_states * alpha) * torch.where(equal, same, other)


def score_entropy_absorbing(
    log_ratios: Tensor, x: Tensor, hidden: Tensor, alpha: Tensor, alpha_prime: Tensor
) -> Tensor:
    """SEDD's loss for absorbing noise: where z is the mask the data's one ratio is alpha / (1 - alpha), at x.

    ``log_ratios`` (..., K) with the mask last, 0 there. Rate -alpha'/alpha.
    """
    positive = log_ratios[..., :-1].exp().sum(-1).double()
    at_x = log_ratios.gather(-1, x[..., None])[..., 0].double()
    return torch.where(hidden, score_nats_absorbing(positive, at_x, alpha, alpha_prime), 0.0)


def score_nats_absorbing(positive: Tensor, at_x: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """``score_entropy_absorbing`` of a hidden token, from the sum of its ratios and the log ratio of x."""
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
    taken in the precision of ``log_p``; all else is one number per token, and float64, because kappa is large.
    """
    num_states = log_p.shape[-1]
    total = log_count(log_p, odds(alpha, num_states))
    log_p_z, log_p_x = (log_p.gather(-1, state[..., None])[..., 0].double() for state in (z, x))
    return uniform_nats(total, log_p_z, log_p_x, z == x, alpha, alpha_prime, num_states)


def odds(alpha: Tensor, num_states: int) -> Tensor:
    """kappa = K alpha / (1 - alpha), of signal to uniform noise."""
    # alpha within rounding of 1 counts as the largest float64 below it: times that small do occur, rarely.
    return num_states * alpha / (1 - alpha).clamp_min(2.0**-53)


def log_count(log_p: Tensor, kappa: Tensor) -> Tensor:
    """R = sum_j log(1 + kappa p_j), the one reduction over the vocabulary: between kappa and K log(1 + kappa / K)."""
    return torch.log1p(kappa.to(log_p.dtype)[..., None] * log_p.exp()).sum(-1).double()


def uniform_nats(
    total: Tensor, log_p_z: Tensor, log_p_x: Tensor, same: Tensor, alpha: Tensor, alpha_prime: Tensor, num_states: int
) -> Tensor:
    """``uniform_bound`` from its numbers per token: R, log p at z and at x, and whether these are the same."""
    kappa, scale = odds(alpha, num_states), num_states / (1 - alpha).clamp_min(2.0**-53)
    p_z = log_p_z.exp()
    l_one, l_z, l_x = torch.log1p(kappa), torch.log1p(kappa * p_z), torch.log1p(kappa * log_p_x.exp())
    damped = 1 + kappa * p_z
    kept = (num_states * l_z - total - (num_states - 1) * l_one) / (1 + kappa)
    # 1/(1 + kappa p) - 1/(1 + kappa) over a common denominator, with 1 - p as -expm1(log p)
    kept = kept - scale * kappa * torch.expm1(log_p_z) / (damped * (1 + kappa))
    other = num_states * l_z - total + l_one + kappa * (l_one - l_x + l_z) - scale * kappa * p_z / damped
    return -alpha_prime / (num_states * alpha) * torch.where(same, kept, other)


def uniform_divergence(log_p: Tensor, x: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """KL(q(z_s | z_t, x) || q(z_s | z_t, p)) per token for uniform noise, with one reduction over the vocabulary.

    The posterior given x takes one value c but at z and x, so the sum over states is c (log(1 + kappa_s) - R) and
    corrections at the two; kappa and R as in ``uniform_bound``. At alpha_s = 1 it is -log p(x | z).
    """
    num_states = log_p.shape[-1]
    total = log_count(log_p, odds(alpha_s, num_states))
    log_p_z, log_p_x = (log_p.gather(-1, state[..., None])[..., 0].double() for state in (z, x))
    return uniform_divergence_nats(total, log_p_z, log_p_x, z == x, alpha_t, alpha_s, num_states)


def uniform_divergence_nats(
    total: Tensor, log_p_z: Tensor, log_p_x: Tensor, equal: Tensor, alpha_t: Tensor, alpha_s: Tensor, num_states: int
) -> Tensor:
    """``uniform_divergence`` from its numbers per token, as in ``uniform_nats``."""
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
    summed = common * (log_one - total) + (at_z - common) * gain_z + (1 - same) * (at_x - common) * gain_x
    return summed + torch.log1p(kappa_t * p_z) - torch.log1p(kappa_t) * same


def absorbing_divergence(log_p: Tensor, x: Tensor, hidden: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The same for absorbing noise: a hidden token is shown with probability (alpha_s - alpha_t) / (1 - alpha_t)."""
    log_p_x = log_p.gather(-1, x[..., None])[..., 0].double()
    return torch.where(hidden, -shown_chance(alpha_t, alpha_s) * log_p_x, 0.0)


def shown_chance(alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """How likely a token hidden at t is shown at s."""
    return (alpha_s - alpha_t) / (1 - alpha_t)


def belief_of_ratios(log_ratios: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """The belief p whose ``log_ratios`` these are: q = ratios / their sum, p = (q - (1 - alpha) prior) / alpha.

    Exact for the ratios of a belief. A learnt score need not be one: then p has negative entries, left as they are.
    """
    q = torch.softmax(log_ratios, -1)
    return (q - (1 - alpha[..., None]) * prior) / alpha[..., None]


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


def finite(values: Tensor) -> Tensor:
    """The network's answer, refused if it is no number: bad weights would otherwise write noise without a word."""
    # one state is enough: a softmax with a NaN in it is NaN everywhere
    if bool(values[..., 0].isnan().any()):
        raise ValueError("the network's output is not a number: its weights are bad")
    return values


def rows_at_once(num_states: int, device: torch.device) -> int:
    """How many rows of a belief to work on at a time.

    On a CPU a few megabytes, which stay in its cache; elsewhere enough to keep a large device busy.
    """
    return max((1 << (20 if device.type == "cpu" else 26)) // num_states, 1)


def categorical(probs: Tensor, u: Tensor) -> Tensor:
    """Exact draw from rows of (unnormalised) ``probs`` (..., K) by inverting the distribution function at u.

    float32 Gumbel noise would cut the tail off; here a state of probability 0 is never drawn and a state of
    probability 1e-12 is drawn that often.
    """
    num_states = probs.shape[-1]
    size = rows_at_once(num_states, probs.device)
    rows = zip(torch.split(probs.reshape(-1, num_states), size), torch.split(u.reshape(-1), size))
    return torch.cat([_drawn(part, draws) for part, draws in rows]).view(u.shape)


def _drawn(probs: Tensor, u: Tensor) -> Tensor:
    """A state for each row of ``probs`` (n, K): the block of states it is in, then the state.

    A block's sum is as precise as its largest part, whatever the size of the others, and sums of blocks are float64.
    """
    num_states, whole = probs.shape[-1], probs.shape[-1] // _BLOCK
    inner, last = probs[:, : whole * _BLOCK].reshape(len(probs), whole, _BLOCK), probs[:, whole * _BLOCK :]
    cdf = torch.cat([inner.sum(-1), last.sum(-1, keepdim=True)], -1).double().cumsum(-1)
    target = u[:, None] * cdf[:, -1:]
    block = _first_above(cdf, target)
    below = torch.where(block > 0, cdf.gather(-1, (block - 1).clamp_min(0)), 0.0)
    states = block * _BLOCK + torch.arange(min(_BLOCK, num_states), device=probs.device)
    mass = torch.where(states < num_states, probs.gather(-1, states.clamp_max(num_states - 1)), 0.0)
    return (block * _BLOCK + _first_above(mass.double().cumsum(-1), target - below))[:, 0]


def _first_above(cdf: Tensor, target: Tensor) -> Tensor:
    """The first place (n, 1) at which ``cdf`` (n, m), which rises, exceeds ``target`` (n, 1)."""
    total = cdf[:, -1:]
    # Rounding may lift the target to the total itself, where no state is left to choose.
    return torch.searchsorted(cdf, torch.minimum(target, torch.nextafter(total, torch.zeros_like(total))), right=True)


def drawn(log_p: Tensor, rows: Tensor, u: Tensor) -> Tensor:
    """A state from each of ``rows`` of the log beliefs (n, K), at ``u`` (as many); a few rows at a time."""
    parts = zip(*(torch.split(each, rows_at_once(log_p.shape[-1], log_p.device)) for each in (rows, u)))
    return torch.cat([categorical(log_p.index_select(0, part).exp_(), draws) for part, draws in parts])
