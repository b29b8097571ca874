"""Formulas read by kernels: sums over a row become the numbers of a formula, and the slopes of these its gradient.

A ``RowReader`` replaces ``Formula.read`` where kernels run: two kernels instead of a dozen passes over the logits.
Between the two everything is one float64 number per row, here; the formula itself (``Formula.nats``) exists once.
``find_reader`` gives the reader of a formula, or None: then PyTorch reads it.

The kernels leave the states x and z that a loss names out of their sums. Their part is added here in float64, so that
nothing is lost where one of them is nearly certain: 1 - p_x is what the other states have.

What must hold: nats and gradients are those of ``fused.formulas`` (tests/gpu/test_row_kernels.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from duality.diffusion import closed_forms
from duality.fused import kernels
from duality.fused.formulas import (
    AbsorbingScoreEntropy,
    BeliefDivergence,
    CrossEntropy,
    Formula,
    PosteriorDivergence,
    UniformBound,
    UniformDivergence,
    UniformScoreEntropy,
)
from duality.fused.lazy import LazyLogits

Pull = Callable[..., Tensor]
"""Given the slopes (n,) of the numbers: replaces the logits by their gradient. Returns sums of it over rows, if any."""
Read = tuple[tuple[Tensor, ...], Pull]
RowReader = Callable[..., Read]
"""A formula, logits, and whether the gradient is summed over rows -> its numbers (n,), float64, and their ``Pull``."""


def find_reader(lazy: LazyLogits, formula: Formula) -> RowReader | None:
    """What reads rows of ``lazy`` for formulas such as this one; None if there are no kernels for it."""
    rows = (lazy, *formula.targets())
    fit = all(each.num_outputs == lazy.num_outputs and each.logits_type() in _TYPES for each in rows)
    return _READERS.get(type(formula)) if fit and kernels.kernels_run(lazy.vectors.device) else None


def _read_cross_entropy(formula: CrossEntropy, logits: Tensor, sums: bool) -> Read:
    x = formula.x
    largest, rest, at_x = kernels.reduce_exponentials(logits, x, x, False)
    centred, log_rest = at_x - largest, rest.log()
    log_sum = torch.logaddexp(centred, log_rest)

    def pull(slope: Tensor) -> Tensor:
        own = slope * torch.exp(log_rest - log_sum)  # slope (1 - p)
        factors = (largest, own, own, -slope * torch.exp(-log_sum), torch.zeros_like(slope))
        parts: Tensor = kernels.pull_exponentials(logits, x, x, torch.stack(factors).float(), False, sums)
        return parts

    return (centred - log_sum,), pull


def _read_bound(formula: UniformBound, logits: Tensor, sums: bool) -> Read:
    return _read_log_count(logits, closed_forms.odds(formula.alpha, formula.num_states), formula.z, formula.x, sums)


def _read_uniform_divergence(formula: UniformDivergence, logits: Tensor, sums: bool) -> Read:
    return _read_log_count(logits, closed_forms.odds(formula.alpha_s, formula.num_states), formula.z, formula.x, sums)


def _read_log_count(logits: Tensor, kappa: Tensor, z: Tensor, x: Tensor, sums: bool) -> Read:
    """R = sum_j log(1 + kappa p_j), log p_z and log p_x.

    With S = sum_j s_j, s_j = u_j / (1 + u_j), u_j = kappa p_j, and Q = sum_j u_j s_j = kappa - S, the gradient of R is
    s_j - p_j S, which is p_j (Q - kappa s_j) too: the one for large, the other for small u_j.
    """
    largest, rest, at_z, at_x, factor, total, share = kernels.reduce_log_count(logits, kappa, z, x)
    same = z == x
    to_z, to_x, log_rest = at_z - largest, at_x - largest, rest.log()
    log_sum = torch.logaddexp(torch.logaddexp(to_z, torch.where(same, -torch.inf, to_x)), log_rest)
    log_p_z, log_p_x = to_z - log_sum, to_x - log_sum
    p_z, p_x = log_p_z.exp(), torch.where(same, 0.0, log_p_x.exp())
    p_rest, inverse = torch.exp(log_rest - log_sum), torch.exp(-log_sum)
    u_z, u_x = kappa * p_z, kappa * p_x
    # the kernel's u is a little more or less than kappa p, by one number for the whole row
    total = total + (kappa * inverse / factor.clamp_min(1e-45) - 1) * share
    few = kappa <= 1
    log_z, log_x = u_z.log1p(), u_x.log1p()
    count = torch.where(few, kappa - (total + (u_z - log_z) + (u_x - log_x)), total + log_z + log_x)

    def pull(slope: Tensor, slope_z: Tensor, slope_x: Tensor) -> Tensor:
        s_z, s_x, other = u_z / (1 + u_z), u_x / (1 + u_x), kappa * p_rest - share
        s_rest, q_rest = torch.where(few, other, share), torch.where(few, share, other)
        named = slope_z + slope_x
        slope_z, slope_x = torch.where(same, named, slope_z), torch.where(same, 0.0, slope_x)
        own_z = (slope_z + slope * s_z) * (p_rest + p_x) - p_z * (slope_x + slope * (s_rest + s_x))
        own_x = (slope_x + slope * s_x) * (p_rest + p_z) - p_x * (slope_z + slope * (s_rest + s_z))
        few_u = slope * (q_rest + u_z * s_z + u_x * s_x) - named
        many_u = slope * (s_rest + s_z + s_x) + named
        scaled = (few_u * inverse, slope * kappa * inverse, many_u * inverse)
        factors = torch.stack((largest, own_z, own_x, factor, *scaled)).float()
        parts: Tensor = kernels.pull_exponentials(logits, z, x, factors, True, sums)
        return parts

    return (count, log_p_z, log_p_x), pull


def _read_uniform_score(formula: UniformScoreEntropy, logits: Tensor, sums: bool) -> Read:
    z, x = formula.z, formula.x
    largest, rest, at_x, total = kernels.reduce_exponentials(logits, z, x, True)

    def pull(slope_positive: Tensor, slope_total: Tensor, slope_x: Tensor) -> Tensor:
        own, at_z = slope_positive * at_x.exp() + slope_total + slope_x, torch.zeros_like(at_x)
        factors = torch.stack((largest, at_z, own, slope_positive * largest.exp(), slope_total)).float()
        parts: Tensor = kernels.pull_exponentials(logits, z, x, factors, False, sums)
        return parts

    return (torch.exp(largest + rest.log()), total, at_x), pull


def _read_absorbing_score(formula: AbsorbingScoreEntropy, logits: Tensor, sums: bool) -> Read:
    x, mask = formula.x, torch.full_like(formula.x, logits.shape[1] - 1)
    largest, rest, at_x = kernels.reduce_exponentials(logits, mask, x, False)

    def pull(slope_positive: Tensor, slope_x: Tensor) -> Tensor:
        own, nothing = slope_positive * at_x.exp() + slope_x, torch.zeros_like(at_x)
        factors = torch.stack((largest, nothing, own, slope_positive * largest.exp(), nothing)).float()
        parts: Tensor = kernels.pull_exponentials(logits, mask, x, factors, False, sums)
        return parts

    return (torch.exp(largest + rest.log()), at_x), pull


def _read_divergence(formula: BeliefDivergence, logits: Tensor, sums: bool) -> Read:
    target, kind = formula.target, formula.divergence
    assert isinstance(target, Tensor), "a lazy target becomes logits when its rows are chosen"
    if isinstance(formula, PosteriorDivergence):
        states = torch.stack((formula.z, formula.target_z))
        evidence = torch.stack((formula.evidence, formula.target_evidence)).float()
    else:
        states = torch.full((2, len(logits)), -1, device=logits.device)
        evidence = torch.zeros(2, len(logits), device=logits.device)
    numbers = kernels.reduce_divergence(logits, target, states, evidence, kind)
    largest, own, largest_t, other, shift, first, second, last = numbers
    # log s - log t is the kernel's g and this
    off = shift - (largest + own.log()) + (largest_t + other.log())
    none = torch.zeros_like(off)
    if kind == "kl-backward":
        nats, factors = first / own + off, (1 / own, first / own, none)
    elif kind == "kl-forward":
        nats, factors = -first / other - off, (1 / own, 1 / other, none)
    elif kind == "mse":
        gap = second + last * off
        nats, factors = (first + 2 * off * second) / last + off.square(), (2 / last, -off, gap / own)
    else:
        nats, factors = first / 2, (1 / own, 1 / other, second)

    def pull(slope: Tensor) -> Tensor:
        rows = torch.stack((largest, largest_t, shift, slope, *factors, last)).float()
        parts: Tensor = kernels.pull_divergence(logits, target, states, evidence, rows, kind, sums)
        return parts

    return (nats,), pull


_TYPES = (torch.float32, torch.bfloat16)  # in float16 a gradient would vanish
_READERS: dict[type[Formula], RowReader] = {
    CrossEntropy: _read_cross_entropy,
    UniformBound: _read_bound,
    UniformDivergence: _read_uniform_divergence,
    UniformScoreEntropy: _read_uniform_score,
    AbsorbingScoreEntropy: _read_absorbing_score,
    BeliefDivergence: _read_divergence,
    PosteriorDivergence: _read_divergence,
}
