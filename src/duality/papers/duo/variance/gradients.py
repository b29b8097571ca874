"""The variance of a stochastic gradient, with intervals: the paper's Figure 2 and its table of gradient variance.

A draw is the gradient g of one minibatch, over all weights, and its loss. Of N independent draws:

    all weights       trace of the covariance of g, sum_w var(g_w): each variance unbiased (divided by N - 1)
    top 100           the sum of the 100 largest of these variances, as the paper has it
    top 100, split    the same, with the weights chosen on one half of the draws and measured on the other
    loss              the variance of the loss
    signal            |E g|^2, unbiased: |mean of g|^2 - trace / N
    signal to noise   signal / trace, of one minibatch

The largest of many estimates are too large by chance: ``top 100`` errs upwards, ``top 100, split`` downwards.

Draws go to m groups in turn. A group keeps the sums of g and of g^2, so memory is 2 m numbers per weight whatever N is.
Intervals come from the delete-a-group jackknife, which repeats each statistic m times, each time without one group:

    stderr^2 = (m - 1) / m  sum_k (f_k - mean f)^2,     95 % interval f +- t(m - 1) stderr

with f the logarithm of a variance, because its error is skewed, and f the statistic itself for a signal, which may be 0
and whose unbiased estimate may lie below. Two objectives that were measured on the same draws have a ratio whose
repetitions are the ratios of theirs, so that what they share cancels.

A heavy tail makes every interval too short. ``largest_share`` shows it: the sum of squares, (N - 1) trace, is a sum of
what each draw adds to it, (i - 1) / i |g_i - mean of the draws before|^2 (Welford). If one draw makes more than
``_WARN_SHARE`` of it, more draws are needed.

What must hold: the statistics but "top 100" are unbiased or ratios of such; the order of the draws within a group has
no effect; sums are in float64 whatever the gradients are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from duality.evaluation.statistics import Estimate, t_quantile
from duality.papers.duo.variance.settings import GROUPS, check_draws, check_groups

STATISTICS = ALL, TOP, SPLIT, LOSS, SIGNAL, SNR = (
    "all weights",
    "top 100",
    "top 100, split",
    "loss",
    "signal",
    "signal to noise",
)
_NUM_TOP = 100
_WARN_SHARE = 0.1
_MEMORY = 4 << 30  # bytes for the sums of all groups

Draw = Callable[[int], tuple[Tensor, float]]  # number of the draw -> flat gradient (P,) and loss


@dataclass(frozen=True)
class Repeated:
    """A statistic of all draws, and its repetitions ``without`` each group, (m,) float64.

    ``signed`` is a statistic that may be 0 or below; the others are at least 0.
    """

    value: float
    without: Tensor
    signed: bool = False

    def estimate(self) -> Estimate:
        """The statistic with its jackknife error and interval."""
        degrees = len(self.without) - 1
        logarithmic = not self.signed and min(self.value, float(self.without.min())) > 0
        repeated = self.without.log() if logarithmic else self.without
        stderr = math.sqrt(degrees * float(repeated.var(correction=0)))
        reach = t_quantile(degrees) * stderr
        if logarithmic:
            low, high = self.value * math.exp(-reach), self.value * math.exp(min(reach, 700.0))
            return Estimate(self.value, self.value * stderr, low, high)
        return Estimate(self.value, stderr, self.value - reach, self.value + reach)

    def over(self, other: Repeated) -> Estimate | None:
        """The ratio to the same statistic of another objective on the same draws.

        None if one of the two may be 0: such a ratio has no interval.
        """
        sure = all(each.estimate().low > 0 and bool((each.without > 0).all()) for each in (self, other))
        return Repeated(self.value / other.value, self.without / other.without).estimate() if sure else None


@dataclass(frozen=True)
class Statistics:
    """The statistics of one objective by name, over ``num_draws`` draws; ``mean_loss`` is what its loss estimates."""

    num_draws: int
    num_weights: int
    mean_loss: Repeated
    largest_share: float
    by_name: dict[str, Repeated]

    @property
    def heavy_tailed(self) -> bool:
        """Whether one draw makes so much of the variance that more draws are needed."""
        return self.largest_share > _WARN_SHARE


class _Sums(NamedTuple):
    """Sums over some draws: of the gradient, of its square, of the loss and of its square."""

    num_draws: int
    gradient: Tensor
    square: Tensor
    loss: float
    loss_square: float

    def variances(self) -> Tensor:
        """The unbiased variance of each weight's gradient, (P,)."""
        return (self.square - self.gradient.square() / self.num_draws).clamp_min_(0.0) / (self.num_draws - 1)

    def loss_variance(self) -> float:
        """The unbiased variance of the loss."""
        return max(0.0, self.loss_square - self.loss**2 / self.num_draws) / (self.num_draws - 1)


class _GroupedDraws:
    """Draws in groups: draw i belongs to group i modulo m."""

    def __init__(self, num_weights: int, groups: int = GROUPS, device: torch.device | str = "cpu"):
        check_groups(groups)
        _check_memory(num_weights, groups)
        self._gradients = torch.zeros(groups, num_weights, dtype=torch.float64, device=device)
        self._squares = torch.zeros_like(self._gradients)
        self._mean = torch.zeros_like(self._gradients[0])
        self._losses: list[float] = []
        self._added: list[float] = []  # what each draw has added to the sum of squares

    def add(self, gradient: Tensor, loss: float) -> None:
        """One more draw."""
        before, exact = len(self._losses), gradient.double()
        group = before % len(self._gradients)
        self._gradients[group] += exact
        self._squares[group] += exact.square()
        step = exact - self._mean
        self._mean += step / (before + 1)
        self._added.append(float(step.square().sum()) * before / (before + 1))
        self._losses.append(loss)

    def statistics(self, num_top: int = _NUM_TOP) -> Statistics:
        """All statistics with their repetitions; losses are counted from the first, which changes no variance."""
        groups = []
        for number, (gradient, square) in enumerate(zip(self._gradients, self._squares)):
            shifted = [loss - self._losses[0] for loss in self._losses[number :: len(self._gradients)]]
            loss_square = math.fsum(loss**2 for loss in shifted)
            groups.append(_Sums(len(shifted), gradient, square, math.fsum(shifted), loss_square))
        even, odd = (_combine(1, *groups[side::2]) for side in (0, 1))
        rows = [_figures(even, odd, num_top)]  # of all, then without each group
        for number, group in enumerate(groups):
            even_left = even if number % 2 else _combine(-1, even, group)
            odd_left = _combine(-1, odd, group) if number % 2 else odd
            rows.append(_figures(even_left, odd_left, num_top))
        found = {
            name: Repeated(value, torch.tensor(without, dtype=torch.float64), signed=name in (SIGNAL, SNR))
            for name, (value, *without) in zip((*STATISTICS, "mean loss"), zip(*rows))
        }
        mean = found.pop("mean loss")
        mean = Repeated(mean.value + self._losses[0], mean.without + self._losses[0], signed=True)
        share = max(self._added) / math.fsum(self._added) if any(self._added) else 0.0
        return Statistics(len(self._losses), self._gradients.shape[1], mean, share, found)


def _combine(sign: int, first: _Sums, *others: _Sums) -> _Sums:
    """The sums of several groups together, or with the sign -1 of the first without the others."""
    for other in others:
        first = _Sums(
            first.num_draws + sign * other.num_draws,
            first.gradient + sign * other.gradient,
            first.square + sign * other.square,
            first.loss + sign * other.loss,
            first.loss_square + sign * other.loss_square,
        )
    return first


def _figures(one: _Sums, other: _Sums, num_top: int) -> tuple[float, ...]:
    """The values of ``STATISTICS`` of the draws in two halves, and the mean loss."""
    whole = _combine(1, one, other)
    variances = whole.variances()
    top = min(num_top, len(variances))
    trace = float(variances.sum())
    largest = float(variances.topk(top).values.sum())
    in_one, in_other = one.variances(), other.variances()
    split = float(in_other[in_one.topk(top).indices].sum() + in_one[in_other.topk(top).indices].sum()) / 2
    signal = float((whole.gradient / whole.num_draws).square().sum()) - trace / whole.num_draws
    ratio = signal / trace if trace > 0 else math.nan
    return trace, largest, split, whole.loss_variance(), signal, ratio, whole.loss / whole.num_draws


def _check_memory(num_weights: int, groups: int) -> None:
    """Refuse more sums of groups than fit the memory."""
    needed = 16 * groups * num_weights
    if needed > _MEMORY:
        fitting = _MEMORY // (16 * num_weights)
        hint = f"use --groups {fitting}" if fitting >= 6 else "use a smaller network"
        raise ValueError(
            f"{groups} groups of {num_weights:,} weights need {needed / 2**30:.1f} GiB, more than the "
            f"{_MEMORY / 2**30:.0f} GiB that are allowed: {hint}"
        )


def collect(
    draw: Draw,
    num_weights: int,
    num_draws: int,
    *,
    groups: int = GROUPS,
    device: torch.device | str = "cpu",
    advance: Callable[[int], None] = lambda count: None,
) -> Statistics:
    """The statistics of ``num_draws`` draws; ``advance`` is called with 1 after each."""
    check_draws(num_draws, groups)
    draws = _GroupedDraws(num_weights, groups, device)
    for number in range(num_draws):
        draws.add(*draw(number))
        advance(1)
    return draws.statistics()
