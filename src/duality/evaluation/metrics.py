"""Measures of samples, from their token ids and from a judge's scores of their texts.

    Gen PPL           exp(sum of the judge's nats / sum of its tokens), over all samples
    entropy           of the tokens within a sample, in nats, averaged over samples
    distinct-n        different n-grams of all samples, divided by all n-grams
    self-repetition   share of a sample's n-grams that it had before, averaged over samples
    MAUVE             how near two sets of texts are, by the judge's hidden states

Gen PPL and entropy have a standard error and a 95 % interval, by a bootstrap over samples with a fixed seed. Gen PPL
alone rewards text that repeats itself: read it together with the entropy.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from duality.evaluation.statistics import Estimate, bootstrap

if TYPE_CHECKING:
    from duality.evaluation.judge import Judge

# MAUVE's package takes one bucket per ten samples; fewer than ten buckets are too few for a histogram.
_LEAST_FOR_MAUVE = 100


def perplexity(scores: Sequence[tuple[float, int]], seed: int = 0) -> Estimate:
    """Gen PPL from the nats and the number of tokens of each text (``Judge.nats``)."""
    if not any(count for _, count in scores):
        raise ValueError(f"no texts to judge: none of {len(scores)} has a token to score; give at least one that has")
    nats, counts = torch.tensor(scores, dtype=torch.float64).unbind(-1)
    return bootstrap(nats, counts, torch.exp, seed)


def entropies(tokens: Tensor) -> Tensor:
    """Entropy in nats of the tokens within each sample (N, L): (N,)."""
    counts = [torch.unique(row, return_counts=True)[1].double() for row in _ids_of(tokens)]
    return torch.stack([torch.special.entr(count / count.sum()).sum() for count in counts])


def unigram_entropy(tokens: Tensor) -> Estimate:
    """Entropy in nats of the tokens within each sample (N, L), averaged over samples."""
    values = entropies(tokens)
    return bootstrap(values, torch.ones_like(values))


def distinct(tokens: Tensor, n: int) -> float:
    """Distinct n-grams over all samples (N, L), divided by the number of n-grams, N (L - n + 1)."""
    grams = _ngrams(tokens, n).flatten(0, 1)
    return len(torch.unique(grams, dim=0)) / len(grams)


def distinct_shares(tokens: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """For each sample (N,) its share in the distinct n-grams of all samples, and its number of n-grams.

    An n-gram that occurs m times in all samples counts 1 / m at each place, so the sum of the shares divided by the sum
    of the numbers is ``distinct``. A bootstrap over samples takes the m as given, which makes its interval somewhat too
    narrow (a tenth for n-grams that follow Zipf's law, a third if they are nearly all different).
    """
    grams = _ngrams(tokens, n)
    _, places, counts = torch.unique(grams.flatten(0, 1), dim=0, return_inverse=True, return_counts=True)
    shares = (1 / counts[places].double()).view(grams.shape[:2]).sum(1)
    return shares, torch.full_like(shares, grams.shape[1])


def self_repetition(tokens: Tensor, n: int = 4) -> float:
    """Share of a sample's n-grams that occurred before in the same sample, averaged over samples (N, L).

    Of a sample's L - n + 1 n-grams, the first of each kind is new and all the others are repetitions.
    """
    shares = [1 - len(torch.unique(grams, dim=0)) / len(grams) for grams in _ngrams(tokens, n)]
    return sum(shares) / len(shares)


def _ngrams(tokens: Tensor, n: int) -> Tensor:
    """All n-grams of each sample, overlapping: (N, L - n + 1, n)."""
    if not 1 <= n <= _ids_of(tokens).shape[1]:
        raise ValueError(f"{n}-grams of samples of {tokens.shape[1]} tokens: n must be from 1 to their length")
    return tokens.unfold(1, n, 1)


def _ids_of(tokens: Tensor) -> Tensor:
    """The tokens themselves; anything but ids of shape (N, L), N and L at least 1, is refused."""
    if tokens.dim() != 2 or not tokens.numel() or tokens.is_floating_point():
        raise ValueError(f"tokens must be ids of shape (samples, length), got {tokens.dtype} of {tuple(tokens.shape)}")
    return tokens


def mauve_obstacle(judge: Judge | None, num_samples: int, num_references: int | None) -> str | None:
    """Why MAUVE cannot be computed; None if it can."""
    if num_references is None:
        return "it needs real text to compare with"
    if judge is None or judge.hidden is None:
        return "it needs a judge that shows its hidden states"
    if min(num_samples, num_references) < _LEAST_FOR_MAUVE:
        return (
            f"it needs {_LEAST_FOR_MAUVE} samples and as many real texts, here are {num_samples} and {num_references} "
            "(its authors advise some thousands)"
        )
    try:
        importlib.import_module("mauve")
    except ImportError as error:
        return f"its package cannot be imported ({error}): pip install mauve-text"
    return None


def mauve(samples: Tensor, references: Tensor) -> float:
    """MAUVE of texts given by their features (N, D), (M, D) under one judge (``Judge.features``): 1 if they are alike.

    The value depends on the judge, on the lengths and on N and M: compare only where these are the same.
    """
    library = importlib.import_module("mauve")
    found = library.compute_mauve(
        p_features=samples.numpy(), q_features=references.numpy(), num_buckets="auto", seed=0, verbose=False
    )
    return float(found.mauve)
