"""The likelihood of given texts by a model's own measure: whole, and token by token.

    -log p(text) <= mean over t of the measure + prior term + reconstruction term

A text is cut into windows of the model's length; each window is measured at ``num_draws`` times (d + u) / num_draws,
d = 0, 1, ..., where u in (0, 1) belongs to the window. Times and noise depend on the seed, the draw and the window's
number in its text, never on the batch or on the other texts of a call: each text has the value that it has alone (to
rounding). The nats of a text are the sum of the nats of its tokens.

The standard error comes from differences between draws at neighbouring times, so that a trend over time, which the
even spacing removes, is counted in small part only. With one draw it is not known (infinite); an exact measure has
none. The end-of-document token is not added to a text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from duality.data.tokenizers import Ids
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Kind, Measure


@dataclass(frozen=True)
class TextLikelihood:
    """-log p of a text in ``nats``, and what kind of number it is: a bound (from above), exact, a pseudo-likelihood.

    >>> TextLikelihood(nats=30.0, num_tokens=12, stderr=0.5, kind="bound").nats_per_token
    2.5
    """

    nats: float
    num_tokens: int
    stderr: float
    kind: Kind

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.num_tokens


@dataclass(frozen=True)
class TokenSurprisal:
    """The share of a token in -log p of its text: its id, how it reads, nats and their standard error."""

    token: int
    text: str
    nats: float
    stderr: float


def mean_and_stderr(draws: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """The mean of draws (D, ...) that are in the order of their times, and its standard error.

    >>> mean, stderr = mean_and_stderr(torch.tensor([1.0, 5.0]), "bound")
    >>> float(mean), float(stderr)
    (3.0, 2.0)
    """
    mean, count = draws.mean(0), len(draws)
    if kind == "exact":
        return mean, torch.zeros_like(mean)
    if count == 1:
        return mean, torch.full_like(mean, math.inf)
    return mean, (draws.diff(dim=0).square().mean(0) / (2 * count)).sqrt()


@dataclass(frozen=True)
class Window:
    """A part of a text: which text, the number of the window in it, its ids, and the size that it is padded to."""

    text: int
    number: int
    ids: Ids
    size: int

    @property
    def shape(self) -> tuple[int, bool]:
        """Windows of one shape are measured together: the padded size, and whether anything is padded."""
        return self.size, len(self.ids) < self.size


def windows(texts: Sequence[Ids], length: int) -> list[Window]:
    """All texts in windows of at most ``length`` ids, each padded to a power of two or to ``length``."""
    return [
        Window(text, number, ids[start : start + length], padded_size(len(ids[start : start + length]), length))
        for text, ids in enumerate(texts)
        for number, start in enumerate(range(0, len(ids), length))
    ]


def padded_size(count: int, length: int) -> int:
    """The next power of two, but no more than ``length``: it depends on the window alone, and wastes less than half.

    >>> [padded_size(count, 100) for count in (1, 5, 8, 65, 100)]
    [1, 8, 8, 100, 100]
    """
    return min(1 << (count - 1).bit_length(), length)


@torch.no_grad()
def token_nats(
    denoiser: AnyDenoiser,
    measure: Measure,
    texts: Sequence[Ids],
    *,
    length: int,
    num_draws: int,
    seed: int,
    batch_size: int,
    device: torch.device,
) -> list[Tensor]:
    """For each text the nats of its tokens at every draw, (D, number of tokens) float64."""
    if num_draws < 1 or batch_size < 1:
        raise ValueError(f"num_draws is {num_draws}, batch_size {batch_size}: each must be at least 1")
    for number, ids in enumerate(texts):
        if not len(ids):
            raise ValueError(f"text {number} is empty: a likelihood needs at least 1 token")
    count = 1 if measure.kind == "exact" else num_draws  # an exact measure has nothing to draw
    found = [torch.zeros(count, len(ids), dtype=torch.float64) for ids in texts]
    pairs = [(window, draw) for window in windows(texts, length) for draw in range(count)]
    pairs.sort(key=lambda pair: pair[0].shape)
    for _, alike in groupby(pairs, key=lambda pair: pair[0].shape):
        rows = list(alike)
        for start in range(0, len(rows), batch_size):
            some = rows[start : start + batch_size]
            nats = measured(denoiser, measure, some, count, seed, device)
            for (window, draw), row in zip(some, nats, strict=True):
                first = window.number * length
                found[window.text][draw, first : first + len(window.ids)] = row[: len(window.ids)]
    return found


def measured(
    denoiser: AnyDenoiser,
    measure: Measure,
    pairs: Sequence[tuple[Window, int]],
    num_draws: int,
    seed: int,
    device: torch.device,
) -> Tensor:
    """The nats (B, L) of windows of one shape, each at its own draw, end terms included."""
    size, padded = pairs[0][0].shape
    x = torch.zeros(len(pairs), size, dtype=torch.int64)
    for row, (window, _) in zip(x, pairs, strict=True):
        row[: len(window.ids)] = torch.from_numpy(window.ids)
    lengths = torch.tensor([len(window.ids) for window, _ in pairs])
    valid = (torch.arange(size) < lengths[:, None]).to(device) if padded else None
    numbers = torch.tensor([window.number for window, _ in pairs], device=device)
    draws = torch.tensor([draw for _, draw in pairs], device=device)
    offsets = Noise.of(seed, 0, numbers).fold("time of a window").uniform("offset")
    noise = Noise(torch.cat([Noise.of(seed, draw, numbers[[row]]).keys for row, (_, draw) in enumerate(pairs)]))
    noise, times = noise.fold("score"), (draws + offsets) / num_draws
    x = x.to(device)
    ends = measure.ends(denoiser, x, noise, valid)
    diffusion = measure(denoiser, x, times, noise, valid).nats
    return (diffusion.double() + ends.prior.double() + ends.reconstruction.double()).cpu()
