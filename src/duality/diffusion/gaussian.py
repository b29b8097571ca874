"""The dual view: uniform-state diffusion is the argmax of a Gaussian diffusion.

A latent w = alpha_tilde e_x + sigma_tilde eps in R^K, with alpha_tilde^2 + sigma_tilde^2 = 1, has the argmax x with
probability P = int phi(u) Phi(mu + u)^(K-1) du, mu = alpha_tilde / sigma_tilde, and every other token equally
often. So its argmax is uniform-state noise at the level alpha = T(alpha_tilde) = (K P - 1) / (K - 1).

- ``level`` is T as a function of mu, ``level_slope`` its derivative, ``inverse_level`` its inverse: trapezoid sums
  over u in [-9, 9] in float64, exact to about 1e-15 for K from 2 to 256 000, with no table and no fit.
- ``tempered_latents`` draws softmax(w / tau) and argmax w without ever building w: the largest k of the K-1
  exchangeable entries are order statistics, which have a closed form.
- ``coupled_argmax`` draws the argmax of the same eps at two noise levels, from three numbers per token.

Throughout, ``mu`` is float64; it broadcasts against the tokens ``x``.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from duality.devices import static_shapes
from duality.noise import Noise
from duality.protocols import TopK

_STEP = 0.05
_MAX_MU = 40.0  # 1 - T is 7e-171 there for K = 256 000: in float64, T is 1 long before


def _check_vocab(vocab_size: int) -> None:
    if vocab_size < 2:
        raise ValueError(f"vocab_size is {vocab_size}: the argmax of a Gaussian needs at least 2 states")


def _nodes(device: torch.device) -> Tensor:
    """Where u is in the trapezoid sums; made on the device, so that nothing is copied to it."""
    return torch.arange(-180, 181, dtype=torch.float64, device=device) * _STEP


def level(mu: Tensor, vocab_size: int) -> Tensor:
    """alpha = T at signal-to-noise ``mu`` (the paper's diffusion transformation operator)."""
    _check_vocab(vocab_size)
    nodes = _nodes(mu.device)
    weights = torch.exp(-0.5 * nodes**2) * (_STEP / math.sqrt(2 * math.pi))
    log_power: Tensor = (vocab_size - 1) * torch.special.log_ndtr(mu.to(torch.float64)[..., None] + nodes)
    # From 1 - P, not from P: close to alpha = 1 the rounding of a sum near 1 would be all that is left.
    miss = -(weights * torch.expm1(log_power)).sum(-1)
    alpha = 1 - miss * vocab_size / (vocab_size - 1)
    # at mu = 0 rounding may leave -2e-16, which is no level
    return torch.where(mu.to(torch.float64) >= 0, alpha.clamp_min(0.0), alpha)


def level_slope(mu: Tensor, vocab_size: int) -> Tensor:
    """d alpha / d mu = K int phi(u) phi(mu + u) Phi(mu + u)^(K-2) du.

    With u = v - mu/2 the two densities are exp(-mu^2/4 - v^2) / (2 pi): the peak of the integrand is near v = 0 for
    every large mu, so no digits are lost.
    """
    _check_vocab(vocab_size)
    half = mu.to(torch.float64) / 2
    v = _nodes(mu.device)
    log_power: Tensor = (vocab_size - 2) * torch.special.log_ndtr(half[..., None] + v)
    integral = (log_power - v**2).exp().sum(-1) * _STEP
    return vocab_size / (2 * math.pi) * torch.exp(-(half**2)) * integral


def inverse_level(alpha: Tensor, vocab_size: int) -> Tensor:
    """The mu at which T is ``alpha``: Newton steps kept inside a shrinking bracket. They are taken on the CPU."""
    device, alpha = alpha.device, alpha.to("cpu", torch.float64)
    if not bool(((alpha >= 0) & (alpha < 1)).all()):
        raise ValueError(
            f"alpha is in [{float(alpha.min())}, {float(alpha.max())}]: T reaches [0, 1) only; 1 needs infinite mu"
        )
    low, high = torch.zeros_like(alpha), torch.full_like(alpha, _MAX_MU)
    mu = torch.full_like(alpha, 3.0)
    for _ in range(100):
        error = level(mu, vocab_size) - alpha
        low, high = torch.where(error < 0, mu, low), torch.where(error < 0, high, mu)
        newton = mu - error / level_slope(mu, vocab_size)
        inside = (newton > low) & (newton < high)
        updated = torch.where(inside, newton, (low + high) / 2)
        if bool((updated - mu).abs().max() <= 1e-15 * _MAX_MU):
            break
        mu = updated
    return updated.to(device)


def _split_mu(mu: Tensor) -> tuple[Tensor, Tensor]:
    """(alpha_tilde, sigma_tilde) of the variance-preserving latent with ratio ``mu``."""
    sigma_tilde = torch.rsqrt(1 + mu**2)
    return mu * sigma_tilde, sigma_tilde


def _distinct_others(x: Tensor, count: int, vocab_size: int, noise: Noise) -> Tensor:
    """``count`` distinct tokens other than ``x``, uniform as an ordered tuple: (B, L, count).

    Duplicates are redrawn until there are none. A rule that treats all tokens alike gives the uniform
    law, because permuting labels takes any ordered tuple of distinct tokens to any other. Where shapes are static they
    are redrawn so often that fewer than one token in 10^16 repeats another one.
    """
    num_others = vocab_size - 1
    shape = (x.shape[1], count)
    if 2 * count >= num_others:
        ids = noise.uniform("order", x.shape[1], num_others).argsort(-1)[..., :count]
        return ids + (ids >= x[..., None])
    ids, static = noise.integers("ids", num_others, *shape), static_shapes(x.device)
    rows = torch.arange(len(x), device=x.device)
    for attempt in range(math.ceil(-37 / math.log(count / num_others))) if static else itertools.count():
        ordered, order = ids[rows].sort(stable=True)
        repeats = torch.zeros_like(order, dtype=torch.bool)
        repeats.scatter_(-1, order[..., 1:], ordered.diff() == 0)
        if not static:
            again = repeats.flatten(1).any(1)
            if not bool(again.any()):
                break
            rows, repeats = rows[again], repeats[again]
        fresh = noise.select(rows).fold(attempt).integers("again", num_others, *shape)
        ids[rows] = torch.where(repeats, fresh, ids[rows])
    return ids + (ids >= x[..., None])


def _largest_normals(count: int, total: int, length: int, noise: Noise) -> Tensor:
    """The largest ``count`` of ``total`` independent standard normals, in falling order: (B, length, count).

    With uniforms u_i, log U_(j) = sum_{i<=j} log(u_i) / (total - i + 1) are the largest order statistics of uniforms
    from the top down; Phi^-1 turns them into normals.
    """
    left = total - torch.arange(count, dtype=torch.float64, device=noise.keys.device)
    log_u = (noise.uniform("largest", length, count).log() / left).cumsum(-1)
    # Phi^-1(U) as -Phi^-1(1 - U): the largest have U so close to 1 that only 1 - U tells them apart.
    normals: Tensor = -torch.special.ndtri(-torch.expm1(log_u))
    return normals


def tempered_latents(
    x: Tensor, mu: Tensor, tau: float, num_kept: int, vocab_size: int, noise: Noise
) -> tuple[TopK, Tensor]:
    """softmax(w / tau) restricted to x and the ``num_kept`` largest other entries, and z = argmax w, exactly."""
    alpha_tilde, sigma_tilde = _split_mu(mu)
    others = sigma_tilde[..., None] * _largest_normals(num_kept, vocab_size - 1, x.shape[1], noise)
    own = alpha_tilde + sigma_tilde * noise.normal("own", x.shape[1])
    ids = _distinct_others(x, num_kept, vocab_size, noise)
    z = torch.where(own > others[..., 0], x, ids[..., 0])
    entries = torch.cat([own[..., None], others], -1)
    return TopK(torch.cat([x[..., None], ids], -1), torch.softmax(entries / tau, -1)), z


def _tail_fraction(entries: Tensor, sigma_tilde: Tensor, tau: float, num_left: int) -> Tensor:
    """Expected mass of the entries left out of ``tempered_latents``, relative to the mass kept.

    Given the smallest kept entry ``cut``, the others are normals conditioned to lie below it, so that
    E exp(w / tau) = exp(S^2/2) Phi(C/S - S) / Phi(C/S) with S = sigma_tilde / tau, C = cut / tau.
    """
    if num_left == 0:
        return torch.zeros_like(sigma_tilde)
    spread, cut = sigma_tilde / tau, entries[..., -1] / tau
    ratio = cut / spread
    log_tail: Tensor = spread**2 / 2 + torch.special.log_ndtr(ratio - spread) - torch.special.log_ndtr(ratio)
    return (math.log(num_left) + log_tail - (entries / tau).logsumexp(-1)).exp()


def kept_entries(mu_range: tuple[float, float], tau: float, vocab_size: int, tolerance: float = 1e-3) -> int:
    """The smallest power of two of kept entries whose expected left-out fraction is at most ``tolerance``.

    The expectation is estimated as a mean over 256 fixed draws, each exact in the entries left out, at the worst of 5
    levels across ``mu_range``: the choice is the same on every machine. If nothing smaller than K - 1 will do,
    nothing is left out.
    """
    num_others = vocab_size - 1
    mu = torch.linspace(*mu_range, 5, dtype=torch.float64)[:, None].expand(5, 256)
    alpha_tilde, sigma_tilde = _split_mu(mu)
    noise = Noise.of(0, 0, torch.arange(5))
    own = (alpha_tilde + sigma_tilde * noise.normal("own", 256))[..., None]
    kept = 2
    while kept < num_others:
        others = sigma_tilde[..., None] * _largest_normals(kept, num_others, 256, noise)
        fraction = _tail_fraction(torch.cat([own, others], -1), sigma_tilde, tau, num_others - kept)
        if float(fraction.mean(-1).max()) <= tolerance:
            return kept
        kept *= 2
    return num_others


def coupled_argmax(x: Tensor, mu_t: Tensor, mu_s: Tensor, vocab_size: int, noise: Noise) -> tuple[Tensor, Tensor]:
    """(z_t, z_s): the argmax of alpha_tilde e_x + sigma_tilde eps at two levels with the same eps, in O(1) per token.

    Only x's own noise, the largest of the other K - 1 and where it stands matter.
    """
    length = x.shape[1]
    own = noise.normal("own", length)
    largest = _largest_normals(1, vocab_size - 1, length, noise)[..., 0]
    other = noise.integers("which", vocab_size - 1, length)
    other = other + (other >= x)
    return torch.where(mu_t + own > largest, x, other), torch.where(mu_s + own > largest, x, other)
