"""Measures of samples, from their token ids and from a judge's scores of their texts, with 95 % intervals.

    Gen PPL           exp(sum of the judge's nats / sum of its tokens), over all samples
    entropy           of the tokens within a sample, in nats, averaged over samples
    distinct-n        different n-grams of all samples, divided by all n-grams
    self-repetition   share of a sample's n-grams that it had before, averaged over samples
    MAUVE             how near two sets of texts are, by the judge's hidden states

Gen PPL and entropy have a standard error and an interval: ``bootstrap`` takes the sum of totals divided by the sum of
counts over resamples of the samples, with a fixed seed. ``t_quantile`` is for few repetitions: the quantile of
Student's law; ``NORMAL`` is that of the normal law. Gen PPL alone rewards text that repeats itself: read it together
with the entropy. What must hold: an interval depends on the numbers and on the seed alone.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from duality.noise import Noise

INTERVAL = (0.025, 0.975)
NORMAL = 1.96
_RESAMPLES = 1000
_FEW = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # for 1 to 10 degrees of freedom


@dataclass(frozen=True)
class Estimate:
    """A figure, its standard error, and its 95 % interval from ``low`` to ``high``; infinite where it is not known."""

    value: float
    stderr: float
    low: float
    high: float

    @property
    def spread(self) -> tuple[float, float, float] | tuple[None, None, None]:
        """Standard error, low and high; None without an interval, which takes two samples that have a number."""
        return (self.stderr, self.low, self.high) if math.isfinite(self.stderr) else (None, None, None)


@dataclass(frozen=True)
class Values:
    """Numbers of samples (N,) whose ratio of sums is a figure; a sample with a count of 0 has no number."""

    totals: Tensor
    counts: Tensor

    def __post_init__(self) -> None:
        if self.totals.ndim != 1 or self.totals.shape != self.counts.shape or not len(self.totals):
            raise ValueError(
                f"totals of shape {tuple(self.totals.shape)}, counts of {tuple(self.counts.shape)}: both must be (N,), "
                "N at least 1"
            )

    @classmethod
    def of_column(cls, column: Sequence[float | None]) -> Values:
        """The numbers of a column, 0 where there is none, and 1 where there is one."""
        numbers = torch.tensor([math.nan if value is None else value for value in column], dtype=torch.float64)
        return cls(numbers.nan_to_num(0.0), (~numbers.isnan()).double())


def bootstrap(values: Values, of: Callable[[Tensor], Tensor] = lambda mean: mean, seed: int = 0) -> Estimate:
    """The figure ``of``(sum of totals / sum of counts) over samples, with its error; ``of`` must be increasing.

    A resample of samples without a number alone is left out.
    """
    totals, counts = values.totals.double(), values.counts.double()
    if not counts.sum() > 0:
        raise ValueError(f"none of {len(counts)} samples has a number: give at least one that has")
    value, size = float(of(totals.sum() / counts.sum())), len(totals)
    if int((counts > 0).sum()) < 2:
        return Estimate(value, math.inf, float(of(torch.tensor(-math.inf))), math.inf)
    noise = Noise.of(seed, 0, torch.arange(_RESAMPLES)).fold("bootstrap")
    chosen = noise.integers("samples", size, size)
    figures = of(totals[chosen].sum(1) / counts[chosen].sum(1))
    figures = figures[~figures.isnan()]
    low, high = figures.quantile(torch.tensor(INTERVAL, dtype=torch.float64)).tolist()
    return Estimate(value, float(figures.std()), low, high)


def occupancy(keys: Sequence[Hashable | None]) -> list[float]:
    """Numbers whose mean is the share of different keys, D / n, and whose spread is that of it; None is no key.

    Of n keys that are drawn one after the other, D are different, and Phi_m of these occur m times. A key counts 1 / m,
    so the mean of these numbers is D / n. Their spread would be that of a mean over independent keys. The variance of
    D is Phi_1 - Phi_2 + Phi_3 - ... - Phi_1^2 / n: as many as n more keys would add (Good and Toulmin, 1956), because
    the variance of a Poisson process is, less what a fixed n takes away; and it is between 0 and Phi_1. The numbers
    are moved away from their mean so that the variance of their mean is this one.

    >>> numbers = occupancy(["CCO", "C", "CCO", None])
    >>> round(sum(numbers), 12)
    2.0
    """
    multiplicity = Counter(key for key in keys if key is not None)
    size, different = len(keys), Counter(multiplicity.values())
    mean = len(multiplicity) / size if size else 0.0
    own = [0.0 if key is None else 1 / multiplicity[key] for key in keys]
    once = different[1]
    added = sum(count if times % 2 else -count for times, count in different.items())
    variance = min(max(added - once**2 / size, 0.0), once) if size else 0.0
    squares = math.fsum((each - mean) ** 2 for each in own)
    scale = math.sqrt(variance / squares) if squares > 0 else 0.0
    return [mean + scale * (each - mean) for each in own]


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: a table for few degrees of freedom, beyond it the series in 1 / degrees.

    >>> [round(t_quantile(degrees), 3) for degrees in (1, 9, 11, 19, 99)]
    [12.706, 2.262, 2.201, 2.093, 1.984]
    """
    if degrees <= len(_FEW):
        return _FEW[degrees - 1]
    z = 1.959963984540054
    terms: tuple[float, ...] = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / float(degrees) ** power for power, term in enumerate(terms))


def perplexity(scores: Sequence[tuple[float, int]], seed: int = 0) -> Estimate:
    """Gen PPL from the nats and the number of tokens of each text (``Judge.nats``)."""
    if not any(count for _, count in scores):
        raise ValueError(f"no texts to judge: none of {len(scores)} has a token to score; give at least one that has")
    return bootstrap(Values(*torch.tensor(scores, dtype=torch.float64).unbind(-1)), torch.exp, seed)


def entropies(tokens: Tensor) -> Tensor:
    """Entropy in nats of the tokens within each sample (N, L): (N,)."""
    counts = [torch.unique(row, return_counts=True)[1].double() for row in _ngrams(tokens, 1)]
    return torch.stack([torch.special.entr(count / count.sum()).sum() for count in counts])


def unigram_entropy(tokens: Tensor) -> Estimate:
    """Entropy in nats of the tokens within each sample (N, L), averaged over samples."""
    return bootstrap(Values.of_column(entropies(tokens).tolist()))


def distinct(tokens: Tensor, n: int) -> float:
    """Distinct n-grams over all samples (N, L), divided by the number of n-grams, N (L - n + 1)."""
    grams = _ngrams(tokens, n).flatten(0, 1)
    return len(torch.unique(grams, dim=0)) / len(grams)


def distinct_shares(tokens: Tensor, n: int) -> Values:
    """For each sample (N,) its share in the distinct n-grams of all samples, and its number of n-grams.

    An n-gram that occurs m times in all samples counts 1 / m at each place, so the sum of the shares divided by the sum
    of the numbers is ``distinct``. A bootstrap over samples takes the m as given, which makes its interval somewhat too
    narrow (a tenth for n-grams that follow Zipf's law, a third if they are nearly all different).
    """
    grams = _ngrams(tokens, n)
    _, places, counts = torch.unique(grams.flatten(0, 1), dim=0, return_inverse=True, return_counts=True)
    shares = (1 / counts[places].double()).view(grams.shape[:2]).sum(1)
    return Values(shares, torch.full_like(shares, grams.shape[1]))


def self_repetition(tokens: Tensor, n: int = 4) -> float:
    """Share of a sample's n-grams that occurred before in the same sample, averaged over samples (N, L).

    Of a sample's L - n + 1 n-grams, the first of each kind is new and all the others are repetitions.
    """
    shares = [1 - len(torch.unique(grams, dim=0)) / len(grams) for grams in _ngrams(tokens, n)]
    return sum(shares) / len(shares)


def _ngrams(tokens: Tensor, n: int) -> Tensor:
    """All n-grams of each sample (N, L), N and L at least 1, overlapping: (N, L - n + 1, n)."""
    if tokens.dim() != 2 or not tokens.numel() or tokens.is_floating_point():
        raise ValueError(f"tokens must be ids of shape (samples, length), got {tokens.dtype} of {tuple(tokens.shape)}")
    if not 1 <= n <= tokens.shape[1]:
        raise ValueError(f"{n}-grams of samples of {tokens.shape[1]} tokens: n must be from 1 to their length")
    return tokens.unfold(1, n, 1)


def mauve(samples: Tensor, references: Tensor) -> float:
    """MAUVE of texts given by their features (N, D), (M, D) under one judge (``Judge.features``): 1 if they are alike.

    The value depends on the judge, on the lengths and on N and M: compare only where these are the same.
    """
    library = importlib.import_module("mauve")
    found = library.compute_mauve(
        p_features=samples.numpy(), q_features=references.numpy(), num_buckets="auto", seed=0, verbose=False
    )
    return float(found.mauve)
