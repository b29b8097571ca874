"""A plain implementation of the methods: dense tensors over the vocabulary, directly from the formulas.

The library is compared with it, in numbers (tests/test_reference.py) and in cost (``make bench``). Nothing is fused:
Gaussian latents have K entries, data are one-hot vectors, a sampler's step makes the whole posterior in float64.

A network is a function ``network(z, alpha) -> logits`` (B, L, K). ``z`` is (B, L) token ids, or (B, L, K) weights of
tokens, whose embedding is weights @ embedding matrix. Levels ``alpha``, their slopes ``alpha_prime`` and ``mu`` are
(B,) float64, ``prior`` (pi) is (K,) float64. Random numbers come from a ``torch.Generator``. The mask token,
if there is one, is the last state.

    marginal        q(z | x) = alpha x + (1 - alpha) pi
    posterior       q(s | z, x) = [r 1{s = z} + (1-r) pi_z] [alpha_s x_s + (1-alpha_s) pi_s]
                                  / [alpha_t x_z + (1-alpha_t) pi_z],    r = alpha_t / alpha_s
    bound           Duo and UDLM: the paper's Eq. 31, with the sign that makes it positive
    masked bound    MDLM: alpha'/(1-alpha) log p_x where masked
    score entropy   SEDD: -alpha'/alpha pi_z sum_{y != z} [s_y - rho_y log s_y + rho_y (log rho_y - 1)]
    consistency     DCD: KL(student at z_t || teacher at z_s), z_t and z_s argmaxes with the same Gaussian noise
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Network = Callable[[Tensor, Tensor], Tensor]


# Noise


def corrupt(x: Tensor, alpha: Tensor, prior: Tensor, generator: Generator) -> Tensor:
    """z ~ q: each token is kept with probability alpha, else drawn from pi."""
    keep = torch.rand(x.shape, dtype=torch.float64, generator=generator) < alpha[:, None]
    fresh = torch.multinomial(prior, x.numel(), replacement=True, generator=generator).view(x.shape)
    return torch.where(keep, x, fresh)


def gaussian_latent(x: Tensor, mu: Tensor, eps: Tensor) -> Tensor:
    """w = alpha_tilde e_x + sigma_tilde eps, (B, L, K), with mu = alpha_tilde / sigma_tilde."""
    sigma_tilde = 1 / (1 + mu**2).sqrt()
    signal, noise = (level.to(eps.dtype)[:, None, None] for level in (mu * sigma_tilde, sigma_tilde))
    return signal * F.one_hot(x, eps.shape[-1]) + noise * eps


# Losses, in nats per token (B, L), of a belief or a score (B, L, K)


def bound(log_p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """alpha'/(K alpha) [K/x_bar_z - K/p_bar_z - sum_j x_bar_j/x_bar_z log(p_bar_z x_bar_j / (p_bar_j x_bar_z))].

    x_bar = K alpha x + (1 - alpha) 1, and p_bar likewise from the belief.
    """
    num_states, level = log_p.shape[-1], alpha.to(log_p.dtype)[:, None, None]
    x_bar = num_states * level * F.one_hot(x, num_states) + (1 - level)
    p_bar = num_states * level * log_p.exp() + (1 - level)
    x_bar_z, p_bar_z = x_bar.gather(-1, z[..., None]), p_bar.gather(-1, z[..., None])
    sum_j = (x_bar / x_bar_z * (p_bar_z * x_bar / (p_bar * x_bar_z)).log()).sum(-1)
    bracket = (num_states / x_bar_z - num_states / p_bar_z)[..., 0] - sum_j
    return (alpha_prime / (num_states * alpha))[:, None] * bracket


def masked_bound(log_p: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """alpha'/(1 - alpha) log p_x where z is the mask token, 0 elsewhere."""
    log_p_x = log_p.gather(-1, x[..., None])[..., 0]
    return torch.where(z == log_p.shape[-1] - 1, (alpha_prime / (1 - alpha))[:, None] * log_p_x, 0.0)


def score_entropy(log_s: Tensor, x: Tensor, z: Tensor, alpha: Tensor, alpha_prime: Tensor, prior: Tensor) -> Tensor:
    """-alpha'/alpha pi_z sum_{y != z} [s_y - rho_y log s_y + rho_y (log rho_y - 1)], rho_y = q(y|x) / q(z|x)."""
    rho = marginal(F.one_hot(x, len(prior)).to(log_s.dtype), alpha, prior.to(log_s.dtype))
    rho = rho / rho.gather(-1, z[..., None])
    # the term at y = z, where s and rho are 1, is 0
    terms = log_s.exp() - rho * log_s + torch.xlogy(rho, rho) - rho
    return (-alpha_prime / alpha)[:, None] * prior[z] * terms.sum(-1)


def next_token(log_p: Tensor, x: Tensor) -> Tensor:
    """-log p(x_l | x_<l)."""
    return -log_p.gather(-1, x[..., None])[..., 0]


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(student || teacher) of log beliefs."""
    return (student.exp() * (student - teacher)).sum(-1)


# From logits to a belief or a score


def masked_belief(logits: Tensor, z: Tensor) -> Tensor:
    """MDLM's log belief: the mask token has probability 0, and an unmasked token is certain."""
    mask_id = logits.shape[-1] - 1
    at_mask = torch.log_softmax(logits.index_fill(-1, torch.tensor(mask_id), -torch.inf), -1)
    certain = F.one_hot(z, mask_id + 1).to(logits.dtype).log()
    return torch.where((z == mask_id)[..., None], at_mask, certain)


def score(logits: Tensor, z: Tensor, alpha: Tensor, masked: bool) -> Tensor:
    """SEDD's log s_y: the logits, with absorbing noise times alpha / ((1 - alpha) (K - 1)), and 0 at y = z."""
    if masked:
        logits = logits + (alpha / ((1 - alpha) * (logits.shape[-1] - 1))).log().to(logits.dtype)[:, None, None]
    return logits.scatter(-1, z[..., None], 0.0)


# Training: the nats of one batch


def curriculum(network: Network, w: Tensor, x: Tensor, alpha: Tensor, alpha_prime: Tensor, tau: float) -> Tensor:
    """Duo's first phase, given the latent: the network reads softmax(w / tau), the bound is taken at argmax w."""
    log_p = torch.log_softmax(network(torch.softmax(w / tau, -1), alpha), -1)
    return bound(log_p, x, w.argmax(-1), alpha, alpha_prime)


def duo(network: Network, z: Tensor, x: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """The bound, given z."""
    return bound(torch.log_softmax(network(z, alpha), -1), x, z, alpha, alpha_prime)


def mdlm(network: Network, z: Tensor, x: Tensor, alpha: Tensor, alpha_prime: Tensor) -> Tensor:
    """The masked bound, given z; the network does not get the noise level."""
    return masked_bound(masked_belief(network(z, torch.ones_like(alpha)), z), x, z, alpha, alpha_prime)


def sedd(
    network: Network, z: Tensor, x: Tensor, alpha: Tensor, alpha_prime: Tensor, prior: Tensor, masked: bool
) -> Tensor:
    """The score entropy, given z."""
    return score_entropy(score(network(z, alpha), z, alpha, masked), x, z, alpha, alpha_prime, prior)


def autoregressive(network: Network, x: Tensor, begin: int) -> Tensor:
    """The cross-entropy of a causal network. The last state, ``begin``, begins a sequence and is never predicted."""
    before = torch.cat([torch.full_like(x[:, :1], begin), x[:, :-1]], 1)
    logits = network(before, torch.ones(len(x), dtype=torch.float64))
    return next_token(torch.log_softmax(logits[..., :begin], -1), x)


def dcd(network: Network, teacher: Network, z_t: Tensor, z_s: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The student at z_t learns the teacher's belief at z_s: argmaxes of ``gaussian_latent`` with one ``eps``."""
    with torch.no_grad():
        target = torch.log_softmax(teacher(z_s, alpha_s), -1)
    return divergence(torch.log_softmax(network(z_t, alpha_t), -1), target)


# Sampling


def marginal(p: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """alpha p + (1 - alpha) pi, for p (B, L, K) on the simplex."""
    level = alpha.to(p.dtype)[:, None, None]
    return level * p + (1 - level) * prior


def posterior(p: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, prior: Tensor) -> Tensor:
    """q(z_s | z_t = z, x = p), (B, L, K)."""
    r = (alpha_t / alpha_s)[:, None, None]
    forward = r * F.one_hot(z, p.shape[-1]) + (1 - r) * prior[z][..., None]
    return forward * marginal(p, alpha_s, prior) / marginal(p, alpha_t, prior).gather(-1, z[..., None])


def psi_posterior(p: Tensor, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, prior: Tensor, kappa: Tensor) -> Tensor:
    """kappa q_s + (1 - kappa) [alpha_s q_0 + (1 - alpha_s) pi], q_0 the posterior at alpha_s = 1."""
    direct = posterior(p, z, alpha_t, alpha_s, prior)
    again = marginal(posterior(p, z, alpha_t, torch.ones_like(alpha_s), prior), alpha_s, prior)
    return kappa[:, None, None] * direct + (1 - kappa)[:, None, None] * again


def draw(q: Tensor, generator: Generator) -> Tensor:
    """Exact draws from rows of float64 probabilities: the state with the smallest exponential variable of rate q."""
    return (torch.empty_like(q).exponential_(generator=generator) / q).argmin(-1)
