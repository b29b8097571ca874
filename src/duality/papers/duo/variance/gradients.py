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

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from duality.evaluation.metrics import Estimate, t_quantile
from duality.files.progress import Advance, unseen
from duality.papers.duo.variance.settings import VarianceSettings

STATISTICS = ALL, TOP, SPLIT, LOSS, SIGNAL, SNR = (
    "all weights",
    "top 100",
    "top 100, split",
    "loss",
    "signal",
    "signal to noise",
)
_NUM_TOP = 100
_TAIL = 3  # sums of a group that do not belong to a weight
_WARN_SHARE = 0.1
_MEMORY = 4 << 30  # bytes for the sums of all groups

Draw = Callable[[int], tuple[Tensor, float]]  # number of the draw -> flat gradient (P,) and loss


@dataclass(frozen=True)
class _Repeated:
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

    def over(self, other: _Repeated) -> Estimate | None:
        """The ratio to the same statistic of another objective on the same draws.

        None if one of the two may be 0: such a ratio has no interval.
        """
        sure = all(each.estimate().low > 0 and bool((each.without > 0).all()) for each in (self, other))
        return _Repeated(self.value / other.value, self.without / other.without).estimate() if sure else None


@dataclass(frozen=True)
class Statistics:
    """The statistics of one objective by name, over ``num_draws`` draws; ``mean_loss`` is what its loss estimates."""

    num_draws: int
    num_weights: int
    mean_loss: _Repeated
    largest_share: float
    by_name: dict[str, _Repeated]

    @property
    def heavy_tailed(self) -> bool:
        """Whether one draw makes so much of the variance that more draws are needed."""
        return self.largest_share > _WARN_SHARE

    @classmethod
    def of_draws(
        cls,
        draw: Draw,
        num_weights: int,
        settings: VarianceSettings,
        device: torch.device | str = "cpu",
        advance: Advance = unseen,
        num_top: int = _NUM_TOP,
    ) -> Statistics:
        """The statistics of the draws that ``settings`` asks for; ``advance`` is called with 1 after each.

        Draw i belongs to group i modulo m. Losses are counted from the first, which changes no variance.
        """
        groups = settings.groups
        needed = 16 * groups * num_weights
        if needed > _MEMORY:
            fitting = _MEMORY // (16 * num_weights)
            hint = f"use --groups {fitting}" if fitting >= 6 else "use a smaller network"
            raise ValueError(
                f"{groups} groups of {num_weights:,} weights need {needed / 2**30:.1f} GiB, more than the "
                f"{_MEMORY / 2**30:.0f} GiB that are allowed: {hint}"
            )
        # a row for each group: the sums of the gradient (P,) and of its square (P,), then the number of draws, and the
        # sums of the loss and of its square
        sums = torch.zeros(groups, 2 * num_weights + _TAIL, dtype=torch.float64, device=device)
        mean, losses = sums.new_zeros(num_weights), list[float]()
        added = []  # what each draw has added to the sum of squares
        for number in range(settings.num_draws):
            gradient, loss = draw(number)
            exact = gradient.double()
            total, squares = sums[number % groups, :-_TAIL].view(2, -1)
            total += exact
            squares += exact.square()
            step = exact - mean
            mean += step / (number + 1)
            added.append(float(step.square().sum()) * number / (number + 1))
            losses.append(loss)
            advance(1)
        for number, row in enumerate(sums):
            shifted = [loss - losses[0] for loss in losses[number::groups]]
            tail = [len(shifted), math.fsum(shifted), math.fsum(loss**2 for loss in shifted)]
            row[-_TAIL:] = torch.tensor(tail, dtype=torch.float64)
        even, odd = (functools.reduce(torch.add, sums[side::2]) for side in (0, 1))
        rows = [_figures(even, odd, num_top)]  # of all, then without each group
        for number, row in enumerate(sums):
            rows.append(_figures(even, odd - row, num_top) if number % 2 else _figures(even - row, odd, num_top))
        found = {
            name: _Repeated(value, torch.tensor(without, dtype=torch.float64), signed=name in (SIGNAL, SNR))
            for name, (value, *without) in zip((*STATISTICS, "mean loss"), zip(*rows))
        }
        mean_loss = found.pop("mean loss")
        mean_loss = _Repeated(mean_loss.value + losses[0], mean_loss.without + losses[0], signed=True)
        share = max(added) / math.fsum(added) if any(added) else 0.0
        return cls(len(losses), num_weights, mean_loss, share, found)


def _variances(sums: Tensor) -> Tensor:
    """The unbiased variance of each weight's gradient, (P,), from the sums over some draws."""
    count, (total, squares) = float(sums[-_TAIL]), sums[:-_TAIL].view(2, -1).unbind()
    return (squares - total.square() / count).clamp_min_(0.0) / (count - 1)


def _figures(one: Tensor, other: Tensor, num_top: int) -> tuple[float, ...]:
    """The values of ``STATISTICS`` of the draws in two halves, and the mean loss."""
    whole = one + other
    count, loss, loss_square = whole[-_TAIL:].tolist()
    variances, in_one, in_other = _variances(whole), _variances(one), _variances(other)
    top = min(num_top, len(variances))
    trace = float(variances.sum())
    largest = float(variances.topk(top).values.sum())
    split = float(in_other[in_one.topk(top).indices].sum() + in_one[in_other.topk(top).indices].sum()) / 2
    loss_variance = max(0.0, loss_square - loss**2 / count) / (count - 1)
    signal = float((whole[: len(variances)] / count).square().sum()) - trace / count
    ratio = signal / trace if trace > 0 else math.nan
    return trace, largest, split, loss_variance, signal, ratio, loss / count
