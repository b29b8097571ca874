"""What a model believes of each token while it writes.

``Observed`` is a denoiser around another one. The belief that it gives to the sampler keeps the rows that the sampler
reads; ``read`` then says, for the tokens that came out of a step, how probable each was, how undecided the model was
there, and what else it thought of. Rows that the sampler did not read, such as places that stay masked, are read then;
a place that is certain needs no reading.

What must hold: the samples are the same with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from duality.fused.lazy import Belief, belief_of, materialised_log_probs
from duality.protocols import AnyDenoiser, Dropout, Labels, Latent, Prefix, Valid

_KEPT = 1 << 24  # numbers of a belief that are kept at most, 64 MB; larger ones are read again
_BLOCK = 32  # states of which only the largest is compared at first


@dataclass(frozen=True)
class _Reading:
    """Of each place (B, L): the probability of its token, the entropy in nats, the most likely tokens (B, L, k)."""

    token: Tensor
    entropy: Tensor
    best: Tensor
    best_probability: Tensor


@dataclass(frozen=True)
class _Noted:
    """A belief as a sampler reads it, and copies of the rows that were read: flat positions, log-probabilities."""

    belief: Belief
    notes: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def num_outputs(self) -> int:
        return self.belief.num_outputs

    @property
    def num_states(self) -> int:
        return self.belief.num_states

    def each(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part, log_p in self.belief.each(rows):
            self._note(part, log_p.clone)  # the sampler may overwrite its own
            yield part, log_p

    def argmax_states(self) -> Tensor:
        return self.belief.argmax_states()

    def log_probs(self) -> Tensor:
        dense = self.belief.log_probs()
        self._note(self.belief.all_rows(), lambda: dense.flatten(0, 1)[:, : self.num_outputs].clone())
        return dense

    def _note(self, rows: Tensor, log_p: Callable[[], Tensor]) -> None:
        if self.belief.positions * self.num_outputs <= _KEPT:
            self.notes.append((rows, log_p()))


class Observed:
    """A denoiser that remembers its last belief, and where it was about: all places, or one of a causal model."""

    def __init__(self, denoiser: AnyDenoiser) -> None:
        self.denoiser = denoiser
        self.last: _Noted | None = None
        self.place: int | None = None

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        self.last = _Noted(belief_of(self.denoiser, z, alpha, valid, dropout, labels))
        self.place = z.position if isinstance(z, Prefix) else None
        return cast(Belief, self.last)  # a sampler uses what LazyBelief has

    log_probs = materialised_log_probs


@torch.no_grad()
def read(noted: _Noted, tokens: Tensor, alternatives: int) -> _Reading:
    """What a belief says of the tokens (B, L), and the ``alternatives`` most likely ones of each place."""
    flat, belief, unread = tokens.flatten(), noted.belief, torch.ones(tokens.numel(), dtype=torch.bool)
    found = _Reading(
        torch.zeros(belief.positions),
        torch.zeros(belief.positions),
        torch.zeros(belief.positions, alternatives, dtype=torch.long),
        torch.zeros(belief.positions, alternatives),
    )
    for rows, log_p in noted.notes:
        _add_rows(found, flat, rows, log_p)
        unread[rows.cpu()] = False
    if belief.certain is not None:
        state = belief.certain.flatten().cpu()
        sure = (unread & (state >= 0)).nonzero()[:, 0]
        found.token[sure] = (state == flat.cpu())[sure].float()
        if alternatives:
            found.best[sure, 0], found.best_probability[sure, 0] = state[sure], 1.0
        unread[sure] = False
    if unread.any():  # what the sampler did not read
        for rows, log_p in belief.each(unread.nonzero()[:, 0].to(flat.device)):
            _add_rows(found, flat, rows, log_p)
    shape = tokens.shape
    return _Reading(*(each.view(*shape, *each.shape[1:]) for each in vars(found).values()))


def _add_rows(found: _Reading, tokens: Tensor, rows: Tensor, log_p: Tensor) -> None:
    """Add what some rows of log-probabilities (n, K) say."""
    places, wanted = rows.cpu(), min(found.best.shape[-1], log_p.shape[-1])
    # a probability of 0 has the logarithm -inf, and adds nothing
    entropy = -(log_p.exp() * log_p.clamp_min(-100.0)).sum(-1)
    inside = tokens[rows] < log_p.shape[-1]  # the mask token is no output
    chosen = log_p.gather(-1, tokens[rows].clamp_max(log_p.shape[-1] - 1)[:, None])[:, 0].exp() * inside
    found.entropy.index_copy_(0, places, entropy.float().cpu())
    found.token.index_copy_(0, places, chosen.float().cpu())
    if wanted:
        values, ids = _largest(log_p, wanted)
        found.best[:, :wanted].index_copy_(0, places, ids.cpu())
        found.best_probability[:, :wanted].index_copy_(0, places, values.exp().float().cpu())


def _largest(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest numbers of each row (n, K) and their places, the largest first.

    They are in the ``count`` blocks with the largest maxima. Finding these first takes a third of the time of ``topk``.

    >>> _largest(torch.tensor([[1.0, 5.0, 3.0]]), 2)
    (tensor([[5., 3.]]), tensor([[1, 2]]))
    """
    whole = rows.shape[-1] // _BLOCK * _BLOCK
    if whole < 8 * count * _BLOCK:
        top = rows.topk(count, -1)
        return top.values, top.indices
    blocks = rows[:, :whole].reshape(len(rows), -1, _BLOCK)
    first = blocks.amax(-1).topk(count, -1).indices
    places = (first[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=rows.device)).flatten(1)
    if whole < rows.shape[-1]:
        rest = torch.arange(whole, rows.shape[-1], device=rows.device).expand(len(rows), -1)
        places = torch.cat([places, rest], -1)
    top = rows.gather(-1, places).topk(count, -1)
    return top.values, places.gather(-1, top.indices)
