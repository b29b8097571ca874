"""How much of a text of few symbols can be learnt, and at which noise levels: by Markov models of it.

    python -m experiments.markov genome.fna             bits per symbol of the last twentieth, by the order of the model
    python -m experiments.markov genome.fna --levels 3  where an ideal model of that order gains, by signal level

A Markov model of order k counts (with 1/2 added to each count) which symbol follows each k symbols. It is fitted on the
text before. More than its best order cannot be learnt by counting neighbours.

The levels: texts of 64 symbols are drawn from the model itself. Their exact belief about a symbol, given the noisy text
without that position, comes from a forward and a backward pass; with it the bound is the entropy. The gain at a level
is the bound's integrand with the frequencies of the symbols as belief, minus that with the exact belief. Its integral
over the levels is what can be learnt: the entropy of order 0 minus that of order k, less what the first symbols of a
text do not know. Shown are shares of it, from alpha = 1 (no noise) down, for uniform and for absorbing noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from duality.data.documents import read_documents
from duality.diffusion.closed_forms import uniform_bound

Numbers = npt.NDArray[np.float64]
Symbols = npt.NDArray[np.int64]
LENGTH, ADDED, HIGHEST = 64, 0.5, 10


def read_symbols(path: str) -> tuple[Symbols, str]:
    """The symbols of a text as numbers, and the alphabet in their order."""
    text = "".join(piece for document in read_documents(path) for piece in document.pieces)
    alphabet = "".join(sorted(set(text)))
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    return np.searchsorted([ord(each) for each in alphabet], codes), alphabet


def contexts(text: Symbols, order: int, size: int) -> tuple[Symbols, Symbols]:
    """The number of the ``order`` symbols before each symbol but the first ones, and that symbol."""
    before = np.zeros(len(text) - order, dtype=np.int64)
    for place in range(order):
        before = before * size + text[place : len(text) - order + place]
    return before, text[order:]


def fit(text: Symbols, order: int, size: int) -> Numbers:
    """How often each symbol follows each context, (size ** order, size)."""
    counts = np.full((size**order, size), ADDED)
    np.add.at(counts, contexts(text, order, size), 1)
    return counts


def bits(counts: Numbers, text: Symbols, order: int) -> float:
    """Bits per symbol of a text under a model."""
    chances = counts / counts.sum(1, keepdims=True)
    return float(-np.log2(chances[contexts(text, order, counts.shape[1])]).mean())


class Chain:
    """Texts of a Markov model, and the exact belief about their symbols."""

    def __init__(self, counts: Numbers):
        self.states, self.size = counts.shape
        self.follow = counts / counts.sum(1, keepdims=True)
        self.first = counts.sum(1) / counts.sum()
        # the state after a state and a symbol
        self.after = (np.arange(self.states)[:, None] * self.size + np.arange(self.size)) % self.states

    def draw(self, count: int, random: np.random.Generator) -> Symbols:
        """Texts of ``LENGTH`` symbols."""
        texts = np.zeros((count, LENGTH), dtype=np.int64)
        state = random.choice(self.states, size=count, p=self.first)
        for place in range(LENGTH):
            chosen = (random.random((count, 1)) > self.follow[state].cumsum(1)).sum(1).clip(max=self.size - 1)
            texts[:, place], state = chosen, self.after[state, chosen]
        return texts

    def beliefs(self, evidence: Numbers) -> Numbers:
        """p(symbol | all other positions), where ``evidence`` has the chance of what is seen under each symbol."""
        count = len(evidence)
        forward = np.zeros((LENGTH, count, self.states))
        state = np.tile(self.first, (count, 1))
        for place in range(LENGTH):
            forward[place] = state
            moved = np.zeros((self.states, count))
            ways = (state[:, :, None] * self.follow * evidence[:, place, None, :]).reshape(count, -1)
            np.add.at(moved, self.after.ravel(), ways.T)
            state = (moved / moved.sum(0)).T
        found, backward = np.zeros_like(evidence), np.ones((count, self.states))
        for place in reversed(range(LENGTH)):
            ahead = self.follow * backward[:, self.after]
            belief = (forward[place][:, :, None] * ahead).sum(1)
            found[:, place] = belief / belief.sum(1, keepdims=True)
            backward = (ahead * evidence[:, place, None, :]).sum(2)
            backward /= backward.sum(1, keepdims=True)
        return found


def uniform_gain(
    chain: Chain, texts: Symbols, frequencies: Numbers, alpha: float, random: np.random.Generator
) -> float:
    """What the exact belief gains at a level of uniform noise, in nats per symbol and unit of alpha."""
    other = random.integers(0, chain.size, texts.shape)
    noisy = np.where(random.random(texts.shape) < alpha, texts, other)
    evidence = np.full((*texts.shape, chain.size), (1 - alpha) / chain.size)
    np.put_along_axis(evidence, noisy[..., None], alpha + (1 - alpha) / chain.size, -1)
    exact = chain.beliefs(evidence)
    level, slope = torch.full((len(texts), 1), alpha, dtype=torch.float64), -torch.ones(len(texts), 1)
    x, z = torch.from_numpy(texts), torch.from_numpy(noisy)
    without, having = (
        float(uniform_bound(torch.from_numpy(belief).log(), x, z, level, slope).mean())
        for belief in (np.broadcast_to(frequencies, exact.shape).copy(), exact)
    )
    return without - having


def absorbing_gain(
    chain: Chain, texts: Symbols, frequencies: Numbers, alpha: float, random: np.random.Generator
) -> float:
    """The same for absorbing noise."""
    masked = random.random(texts.shape) >= alpha
    exact = chain.beliefs(np.where(masked[..., None], 1.0, np.eye(chain.size)[texts]))
    gained = np.log(np.take_along_axis(exact, texts[..., None], -1)[..., 0]) - np.log(frequencies[texts])
    return float((gained * masked).mean() / (1 - alpha))


def gains(counts: Numbers, num_levels: int, num_texts: int) -> Numbers:
    """The gain at each level, from alpha near 1 down, of uniform and of absorbing noise: (num_levels, 2)."""
    random, chain = np.random.default_rng(0), Chain(counts)
    texts, frequencies = chain.draw(num_texts, random), counts.sum(0) / counts.sum()
    levels = 1 - (np.arange(num_levels) + 0.5) / num_levels
    return np.array(
        [
            [each(chain, texts, frequencies, alpha, random) for each in (uniform_gain, absorbing_gain)]
            for alpha in levels
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a text of few symbols, such as a FASTA file")
    parser.add_argument("--levels", type=int, metavar="ORDER", help="show where a model of this order gains")
    parser.add_argument("--texts", type=int, default=256)
    options = parser.parse_args(arguments)
    symbols, alphabet = read_symbols(options.text)
    train, held_out = np.split(symbols, [len(symbols) * 19 // 20])
    print(f"{len(symbols):,} symbols: {alphabet}")
    if options.levels is None:
        for order in range(HIGHEST + 1):
            print(f"order {order:2}: {bits(fit(train, order, len(alphabet)), held_out, order):.4f} bits")
        return
    found = gains(fit(train, options.levels, len(alphabet)), 24, options.texts)
    print(f"in all {found[:, 0].mean():.4f} nats (uniform), {found[:, 1].mean():.4f} (absorbing)")
    for level, shares in enumerate(found.cumsum(0) / found.sum(0), 1):
        if level % 2 == 0:
            print(f"above alpha {1 - level / 24:.2f}: {shares[0]:4.0%} (uniform), {shares[1]:4.0%} (absorbing)")


if __name__ == "__main__":
    main()
