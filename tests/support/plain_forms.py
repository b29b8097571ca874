"""Plain forms, as dense tensors, of losses that the library computes fused; tests compare the two."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from duality.diffusion import Divergence
from duality.diffusion.closed_forms import (
    _log_count,
    absorbing_weight,
    odds,
    score_nats_absorbing,
    score_nats_uniform,
    shown_chance,
    uniform_divergence_nats,
)


def dense_uniform_bound(log_p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """The bound for uniform noise as UDLM writes it, with both K-vectors (the paper's Eq. 31, sign corrected).

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


def absorbing_bound(log_p: Tensor, x: Tensor, masked: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """The bound for absorbing noise: MDLM's -alpha'/(1 - alpha) (-log p_x) where z is the mask token, 0 elsewhere."""
    log_p_x = log_p.gather(-1, x[..., None])[..., 0].double()
    return torch.where(masked, -absorbing_weight(alpha, alpha_prime) * log_p_x, 0.0)


def score_entropy_uniform(log_ratios: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """SEDD's loss for uniform noise, with the sums over the data's ratios in closed form.

    The data's ratios are equal except at one state. With e = (1 - alpha) / (1 - alpha + K alpha), they are all e if
    z = x, and 1 but for 1/e at x otherwise. Rate -alpha'/(K alpha).
    """
    # log_ratios is 0 at z, so only exp needs the state z taken out
    positive = log_ratios.exp().sum(-1).double() - 1
    total = log_ratios.sum(-1).double()
    at_x = log_ratios.gather(-1, x[..., None])[..., 0].double()
    return score_nats_uniform(positive, total, at_x, z == x, alpha, alpha_prime, log_ratios.shape[-1])


def score_entropy_absorbing(
    log_ratios: Tensor, x: Tensor, masked: Tensor, alpha: Tensor, alpha_prime: Tensor
) -> Tensor:
    """SEDD's loss for absorbing noise: where z is the mask token, the data's one ratio is alpha / (1 - alpha), at x.

    ``log_ratios`` (..., K) with the mask token last, 0 there. Rate -alpha'/alpha.
    """
    positive = log_ratios[..., :-1].exp().sum(-1).double()
    at_x = log_ratios.gather(-1, x[..., None])[..., 0].double()
    return torch.where(masked, score_nats_absorbing(positive, at_x, alpha, alpha_prime), 0.0)


def uniform_divergence(log_p: Tensor, x: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """KL(q(z_s | z_t, x) || q(z_s | z_t, p)) per token for uniform noise, with one reduction over the vocabulary.

    The posterior given x has one value c except at z and x, so the sum over states is c (log(1 + kappa_s) - R) and
    corrections at the two; kappa and R as in ``uniform_bound``. At alpha_s = 1 it is -log p(x | z).
    """
    num_states = log_p.shape[-1]
    total = _log_count(log_p, odds(alpha_s, num_states))
    log_p_z, log_p_x = (log_p.gather(-1, state[..., None])[..., 0].double() for state in (z, x))
    return uniform_divergence_nats(total, log_p_z, log_p_x, z == x, alpha_t, alpha_s, num_states)


def absorbing_divergence(log_p: Tensor, x: Tensor, masked: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The same for absorbing noise: a mask token is unmasked with probability (alpha_s - alpha_t) / (1 - alpha_t)."""
    log_p_x = log_p.gather(-1, x[..., None])[..., 0].double()
    return torch.where(masked, -shown_chance(alpha_t, alpha_s) * log_p_x, 0.0)


def belief_of_ratios(log_ratios: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """The belief p whose ``log_ratios`` these are: q = ratios / their sum, p = (q - (1 - alpha) prior) / alpha.

    Exact for the ratios of a belief. A learned score need not be one: then p has negative entries, which are kept.
    """
    q = torch.softmax(log_ratios, -1)
    return (q - (1 - alpha[..., None]) * prior) / alpha[..., None]


def divergence(kind: Divergence, student: Tensor, teacher: Tensor) -> Tensor:
    """(B, L) float64 from log beliefs (B, L, K); the sums are taken in the beliefs' precision."""
    if kind == "tvd":
        return 0.5 * (student.exp() - teacher.exp()).abs().sum(-1).double()
    possible = (student > -torch.inf) | (teacher > -torch.inf)
    gap = torch.where(possible, student, 0.0) - torch.where(possible, teacher, 0.0)
    if kind == "mse":
        return (gap.square().sum(-1) / possible.sum(-1)).double()
    if kind == "kl-backward":
        return torch.where(student > -torch.inf, student.exp() * gap, 0.0).sum(-1).double()
    return -torch.where(teacher > -torch.inf, teacher.exp() * gap, 0.0).sum(-1).double()
