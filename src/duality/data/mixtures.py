"""Mixtures: several corpora in one, each with the share of the sequences that a training takes from it.

    data.corpus=[books.txt:0.7,lm1b:0.3]        seven of ten sequences are of the books

The tokens of a mixture are one store, corpus after corpus; each is split for validation by its own rule, and one
tokenizer is trained on all of them. The shares are no part of the store: they decide in which order the loader visits
it. ``MixedOrder`` says which sequence is at which place of a training:

    place n   ->  its group, by a pattern of PERIOD places that is shuffled once and repeated
              ->  how many places before n have the same group
              ->  the sequence at that place of the group's own epochs, each of which has every sequence once

What must hold: in every PERIOD places each corpus has its share, to a thousandth; within a corpus every sequence comes
once in each of its epochs; the order is a pure function of the seed and the place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

PERIOD = 1000

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Share:
    """A corpus of a mixture and its weight."""

    corpus: str
    weight: float


def shares_of(spec: object) -> tuple[_Share, ...]:
    """The corpora of a mixture with weights that add up to 1; none if this is no mixture.

    >>> shares_of("[a.txt:3,hf:owner/name:text:1]")
    (_Share(corpus='a.txt', weight=0.75), _Share(corpus='hf:owner/name:text', weight=0.25))
    >>> shares_of("a.txt")
    ()
    """
    text = spec.strip() if isinstance(spec, str) else ""
    if not (text.startswith("[") and text.endswith("]")):
        return ()
    rule = "write a mixture as [CORPUS:WEIGHT,CORPUS:WEIGHT], such as [books.txt:0.7,lm1b:0.3]"
    found: list[_Share] = []
    for part in text[1:-1].split(","):
        corpus, _, number = part.strip().rpartition(":")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not corpus or not 0 < weight < float("inf"):
            raise ValueError(f"{part.strip()!r} is no corpus with a positive weight; {rule}")
        found.append(_Share(corpus, weight))
    names = [share.corpus for share in found]
    if len(found) < 2 or len(set(names)) < len(names):
        raise ValueError(f"{text} has fewer than two corpora, or one twice; {rule}")
    total = sum(share.weight for share in found)
    return tuple(_Share(share.corpus, share.weight / total) for share in found)


@dataclass(frozen=True)
class MixedOrder:
    """The order of a mixture whose groups of sequences end at ``ends``, one behind the other."""

    ends: tuple[int, ...]
    weights: tuple[float, ...]
    seed: int

    @cached_property
    def counts(self) -> Places:
        """How many places of a period each group has: its share, at least one."""
        exact = np.array(self.weights) * PERIOD
        counts = np.maximum(1, np.floor(exact)).astype(np.int64)
        order = np.argsort(-(exact - counts), kind="stable")
        for place in range(PERIOD - int(counts.sum())):
            counts[order[place % len(order)]] += 1
        while counts.sum() > PERIOD:  # many groups with tiny shares
            counts[np.argmax(counts)] -= 1
        result: Places = counts
        return result

    @cached_property
    def pattern(self) -> Places:
        """The group of each place of a period."""
        groups = np.repeat(np.arange(len(self.counts)), self.counts)
        key = np.array([self.seed, (1 << 64) - 1], dtype=np.uint64)
        shuffled: Places = np.random.Generator(np.random.Philox(key=key)).permutation(groups)
        return shuffled

    @cached_property
    def before(self) -> Places:
        """(groups, PERIOD): how many places before each place of a period a group has."""
        chosen = self.pattern[None, :] == np.arange(len(self.counts))[:, None]
        before: Places = np.cumsum(chosen, axis=1) - chosen
        return before

    def sequences(self, places: Places) -> Places:
        """The sequences at some places."""
        periods, slots = np.divmod(places, PERIOD)
        groups = self.pattern[slots]
        ranks = periods * self.counts[groups] + self.before[groups, slots]
        starts = (0, *self.ends[:-1])
        found = np.empty(len(places), dtype=np.int64)
        for group in np.unique(groups).tolist():
            here, size = groups == group, self.ends[group] - starts[group]
            # no two groups, nor a corpus alone, have the same orders
            found[here] = starts[group] + visit_epochs(self.seed, ranks[here], size, group + 1 << 40)
        return found


def visit_epochs(seed: int, places: Places, count: int, first: int = 0) -> Places:
    """The sequences at some places of the epochs of ``count`` sequences, one after another from epoch ``first`` on."""
    epochs, within = np.divmod(places, count)
    chosen = np.empty(len(places), dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        chosen[here] = epoch_order(seed, first + epoch, count)[within[here]]
    return chosen


@lru_cache(maxsize=16)  # the current epoch and, if a batch lies across the border, the next one; of each corpus
def epoch_order(seed: int, epoch: int, count: int) -> Places:
    """The order in which an epoch visits ``count`` sequences; read-only, as it is cached."""
    key = np.array([seed, epoch], dtype=np.uint64)
    order = np.random.Generator(np.random.Philox(key=key)).permutation(count)
    order.setflags(write=False)
    return order
