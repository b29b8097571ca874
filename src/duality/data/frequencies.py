"""What counts of a text alone give: the nats per token that a model has to be better than if it has learnt anything.

    token frequencies    p(b)   = (c(b) + T / K) / (N + T)                    T different tokens among N
    pairs                p(b|a) = (c(ab) + T(a) p(b)) / (c(a) + T(a))         T(a) different tokens behind a

Both are smoothed as Witten and Bell (1991) do it: what was not seen has the share T, pairs fall back to frequencies and
these to 1 / K. They are counted in the training part, or ``MOST`` tokens evenly spread over it, and measured on the
sequences and in the unit of a validation: nats per real token. The first token of a sequence has no token before it.
"""

from __future__ import annotations

import numpy as np

from duality.data.packing import Places, Sequences

MOST = 1 << 21


def nats_of_counts(train: Sequences, held_out: Sequences, limit: int | None = None) -> tuple[float, float]:
    """Nats per token of ``limit`` sequences of the held-out text under token frequencies, and under pairs."""
    states = train.store.vocab_size
    first, before, after = _tokens_and_pairs(train, max(1, MOST // train.length))
    seen = np.concatenate([first, after])
    counts = np.bincount(seen, minlength=states)
    kinds = np.count_nonzero(counts)
    frequencies = (counts + kinds / states) / (len(seen) + kinds)
    pairs, times = np.unique(before * states + after, return_counts=True)
    followers = np.bincount(pairs // states, minlength=states)
    visits = np.bincount(before, minlength=states)

    first, before, after = _tokens_and_pairs(held_out, limit)
    alone, keys = frequencies[after], before * states + after
    places = np.minimum(np.searchsorted(pairs, keys), max(0, len(pairs) - 1))
    found = np.where(pairs[places] == keys, times[places], 0) if len(pairs) else np.zeros(len(keys))
    weight = followers[before]
    # a token that nothing has followed says nothing of the next one
    follow = np.where(weight, (found + weight * alone) / np.maximum(1, visits[before] + weight), alone)
    begin, num = -np.log(frequencies[first]).sum(), max(1, len(first) + len(after))
    return tuple(float((begin - np.log(each).sum()) / num) for each in (alone, follow))  # type: ignore[return-value]


def _tokens_and_pairs(sequences: Sequences, limit: int | None) -> tuple[Places, Places, Places]:
    """The first token of each sequence; and of the other real tokens, the one before and the token itself."""
    chosen = sequences.spread(limit)
    ids, real = sequences.rows(chosen)[0].numpy(), sequences.real(chosen).numpy()
    inner = real[:, 1:]
    return ids[:, 0], ids[:, :-1][inner], ids[:, 1:][inner]
