"""The likelihood of given texts by a model's own measure: whole, token by token, and given what stands before.

    -log p(text | context) <= mean over t of the measure + prior term + reconstruction term

A text is cut into windows of the model's length; each window is measured at ``num_draws`` times (d + u) / num_draws,
d = 0, 1, ..., where u in (0, 1) belongs to the window. Times and noise depend on the seed, the draw and the window's
number in its text, never on the batch or on the other texts of a call: each text has the value that it has alone (to
rounding). The nats of a text are the sum of the nats of its tokens.

A context is known: its tokens are never noisy, the network reads them clean, and they cost nothing. What is measured is
the process that a sampler with a prompt simulates (``Clamped``): noise acts on the tokens of the text alone, and the
reverse process reads these and the clean context. That is a diffusion over the tokens of the text, whose denoiser
depends on the context, so the measure's own bound holds for it; it is the sum of the terms at the tokens of the text.

    autoregressive       exact: -log p(token | context, tokens before it)
    pseudo-likelihood    the sum of -log p(token | context, all other tokens)
    absorbing noise      a bound, and -log p(text | context) itself if the denoiser knows every conditional of the data
    uniform noise        a bound for what the sampler writes behind a prompt. The network reads clean tokens at a level
                         at which it expects noisy ones: the perfect denoiser of whole texts is not perfect here
    Gaussian             refused: vectors cannot be held in place

The standard error comes from differences between draws at neighbouring times, so that a trend over time, which the
even spacing removes, is counted in small part only. With one draw it is not known (infinite); an exact measure has
none. The end-of-document token is not added to a text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice

import numpy as np
import torch
from torch import Tensor

from duality.denoisers.clamp import in_context
from duality.files.progress import Reporter, silent, working
from duality.models.requests import ScoreRequest
from duality.models.trained import TrainedModel
from duality.noise import Noise
from duality.protocols import Kind
from duality.tokenizers.pieces import Pieces
from duality.tokenizers.tokenizer import Ids, Tokenizer


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

    @staticmethod
    def of(draws: Tensor, kind: Kind) -> TextLikelihood:
        """The likelihood of a text from the nats of its tokens at every draw, (D, number of tokens)."""
        mean, stderr = _mean_and_stderr(draws.sum(1), kind)
        return TextLikelihood(float(mean), draws.shape[1], float(stderr), kind)


@dataclass(frozen=True)
class TokenSurprisal:
    """The share of a token in -log p of its text: its id, how it reads, nats and their standard error."""

    token: int
    text: str
    nats: float
    stderr: float

    @staticmethod
    def of(tokenizer: Tokenizer, passage: Passage, draws: Tensor, kind: Kind) -> list[TokenSurprisal]:
        """Each token of a passage, from the nats of all at every draw, (D, number of tokens)."""
        ids, (nats, stderr) = passage.ids.tolist(), _mean_and_stderr(draws, kind)
        texts = Pieces(tokenizer).per_token(ids)
        return [TokenSurprisal(*entry) for entry in zip(ids, texts, nats.tolist(), stderr.tolist())]


def _mean_and_stderr(draws: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """The mean of draws (D, ...) that are in the order of their times, and its standard error.

    >>> mean, stderr = _mean_and_stderr(torch.tensor([1.0, 5.0]), "bound")
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
class Passage:
    """Tokens to measure, ``ids``, given the tokens before them, ``context``; ``seed`` is that of times and noise.

    ``filled``: a last window that is shorter than the others begins with known tokens of the passage before it.
    ``overlap``: every later window begins with so many known tokens; 0 if it begins where the one before ends.
    """

    ids: Ids
    context: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seed: int = 0
    filled: bool = False
    overlap: int = 0

    @staticmethod
    def of(tokenizer: Tokenizer, text: str, context: str, seed: int = 0) -> Passage:
        """Text and context as ids, divided as lm-evaluation-harness divides them.

        White space at the end of the context belongs to the text, because most tokenizers begin a word with its space.
        Both are encoded as one string, and the tokens behind the number that the context has alone are the text's.
        Where none is left, as a token reaches over the border, the text is encoded alone.

        >>> from duality.tokenizers.tokenizer import ByteTokenizer
        >>> Passage.of(ByteTokenizer(), "b", "a ").ids.tolist()
        [32, 98]
        """
        before = context.rstrip()
        if not before or not text:
            return Passage(tokenizer.encode(context + text if text else ""), seed=seed)
        after = context[len(before) :] + text
        known = tokenizer.encode(before)
        ids = tokenizer.encode(before + after)[len(known) :]
        return Passage(ids if len(ids) else tokenizer.encode(after), known, seed)


@dataclass(frozen=True)
class Window:
    """A part of a text: which text, the number of the window in it, its ids, and the size that it is padded to.

    The first ``known`` ids are not measured; the next one is token ``first`` of the text.
    """

    text: int
    number: int
    first: int
    known: int
    ids: Ids
    size: int
    seed: int

    @property
    def shape(self) -> tuple[int, bool, bool]:
        """Windows of one shape are measured together: padded size, whether anything is padded, whether any is known."""
        return self.size, len(self.ids) < self.size, self.known > 0

    @staticmethod
    def cut(passages: Sequence[Passage], length: int) -> list[Window]:
        """All passages in windows of at most ``length`` ids, each padded to a power of two or to ``length``.

        The size of a window depends on the window alone, and less than half of it is padding.

        Each token is measured in one window, and there are no more windows than the tokens need. The places that are
        free in these belong to the end of the context, at the beginning of the first window; what does not fit is cut
        off on the left. Later windows begin where the one before ends, unless ``filled`` gives the last one the tokens
        before it. With an ``overlap`` all windows begin with as many known tokens, the first with what its context has
        of these.
        """
        found = []
        for text, each in enumerate(passages):
            free = each.overlap or -len(each.ids) % length
            row, number, start = np.concatenate([each.context, each.ids]), 0, len(each.context)
            known = min(free, start)
            while start < len(row):
                end = min(start + length - known, len(row))
                ids = row[start - known : end]
                size = min(1 << (len(ids) - 1).bit_length(), length)  # the next power of two
                found.append(Window(text, number, start - len(each.context), known, ids, size, each.seed))
                number, start = number + 1, end
                fills = each.filled and 0 < len(row) - end < length
                known = min(length - (len(row) - end), start) if fills else each.overlap
        return found


@torch.no_grad()
def measure_tokens(
    model: TrainedModel, passages: Sequence[Passage], request: ScoreRequest, report: Reporter = silent
) -> list[Tensor]:
    """For each passage the nats of its tokens at every draw, (D, number of tokens) float64, end terms included.

    Windows of one shape are measured together, each at its own draw.
    """
    if request.num_draws < 1 or request.batch_size < 1:
        raise ValueError(f"num_draws is {request.num_draws}, batch_size {request.batch_size}: each must be at least 1")
    for number, each in enumerate(passages):
        if not len(each.ids):
            raise ValueError(f"text {number} is empty: a likelihood needs at least 1 token")
    denoiser, measure, device = model.with_label(request.label), model.measure, model.device
    count = 1 if measure.kind == "exact" else request.num_draws  # an exact measure has nothing to draw
    found = [torch.zeros(count, len(each.ids), dtype=torch.float64) for each in passages]
    pairs = [(window, draw) for window in Window.cut(passages, model.length) for draw in range(count)]
    with model.computing(), working(report, "measuring", len(pairs), "windows") as advance:
        for some in batch_windows(pairs, request.batch_size):
            _, with_padding, with_known = some[0][0].shape
            x, real, known = pad_windows([window for window, _ in some], device)
            valid, reader = real if with_padding else None, denoiser
            if with_known:
                reader, valid = in_context(denoiser, x, known, valid), real & ~known
            draws = torch.tensor([draw for _, draw in some], device=device)
            offsets = draw_noise([(window, 0) for window, _ in some], device).fold("time of a window").uniform("offset")
            noise, times = draw_noise(some, device).fold("score"), (draws + offsets) / count
            ends = measure.ends(reader, x, noise, valid)
            diffusion = measure(reader, x, times, noise, valid).nats
            nats = (diffusion.double() + ends.prior.double() + ends.reconstruction.double()).cpu()
            for (window, draw), row in zip(some, nats, strict=True):
                paid = row[window.known : len(window.ids)]
                found[window.text][draw, window.first : window.first + len(paid)] = paid
            advance(len(some))
    return found


def batch_windows(pairs: Sequence[tuple[Window, int]], batch_size: int) -> Iterator[list[tuple[Window, int]]]:
    """Windows and their draws, those of one shape together."""
    for _, alike in groupby(sorted(pairs, key=lambda pair: pair[0].shape), key=lambda pair: pair[0].shape):
        while some := list(islice(alike, batch_size)):
            yield some


def pad_windows(
    rows: Sequence[Window], device: torch.device | str, size: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Windows of one size as ids (B, L), 0 in the padding; which of them are real, and which of these are known.

    ``size`` is the one that they have, or another that all of them fit into.
    """
    size = rows[0].size if size is None else size
    x = torch.zeros(len(rows), size, dtype=torch.int64)
    for row, window in zip(x, rows, strict=True):
        row[: len(window.ids)] = torch.from_numpy(window.ids)
    places, ends = torch.arange(size), torch.tensor([[len(window.ids), window.known] for window in rows])
    real, known = (places < ends[:, :1]).to(device), (places < ends[:, 1:]).to(device)
    return x.to(device), real, known


def draw_noise(rows: Sequence[tuple[Window, int]], device: torch.device) -> Noise:
    """The noise of each window at its draw: it belongs to the seed, the draw and the number of the window."""
    numbers = torch.tensor([window.number for window, _ in rows], device=device)
    sources = [(window.seed, draw) for window, draw in rows]
    if len(set(sources)) == 1:
        return Noise.of(*sources[0], numbers)
    return Noise(torch.cat([Noise.of(*source, numbers[[row]]).keys for row, source in enumerate(sources)]))
