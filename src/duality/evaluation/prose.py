"""Prose: a scorer of texts that have no truth, by what they repeat and by how well they foretell real text.

    repetition    share of a text's word 4-grams that another of the texts has: what a model writes again and again
    reverse nats  nats per character of held-out text under a model of the texts' characters (Zhao et al., 2018)

Gen PPL falls when a model writes only what is likely. The reverse nats rise then, because the texts no longer have what
real text has; they rise too when texts are wrong. They compare sets of equally many, equally long texts, and fall with
their number. The model is one of n-grams of up to six characters: at each order the estimate is that of the order
below, and the counts c(h, x) of what followed the context h (Witten and Bell, 1991):

    p_n(x | h) = (c(h, x) + t(h) p_{n-1}(x | h')) / (c(h) + t(h)),    t(h) different characters after h, p_0 = 1 / 256

The reverse nats belong to the set of texts. Their spread is that of the jackknife over groups of texts: the numbers of
a group are moved away from the mean so that the variance of their mean is the jackknife's.

What must hold: the numbers depend on the texts and the held-out texts alone; probabilities of a context add up to 1.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from duality.evaluation.scorers import Numbers, ScorerContext, Texts

_ORDER = 6
_CHARACTERS = 256  # bytes: no text has one that the model does not know
_GROUPS = 12
_MOST_HELD_OUT = 20_000  # bytes of held-out text that are read
_REPEATED = 4
_VERSION = "1"


@dataclass(frozen=True)
class Prose:
    """The scorer of texts without a truth, against the held-out texts of the first run."""

    context: ScorerContext

    @classmethod
    def from_context(cls, context: ScorerContext) -> Prose:
        """The scorer for runs with these held-out texts."""
        return cls(context)

    @property
    def name(self) -> str:
        return "prose"

    @property
    def version(self) -> str:
        """The held-out texts decide the numbers, which belong to the texts for training."""
        return f"{_VERSION}, {self.context.training_id[:12]}"

    @property
    def columns(self) -> tuple[str, ...]:
        return ("repetition", "reverse nats")

    @cached_property
    def held_out(self) -> bytes:
        """The beginning of the held-out text."""
        found = "\n".join(self.context.held_out_texts()).encode("utf-8")[:_MOST_HELD_OUT]
        if not found:
            raise ValueError("reverse nats need held-out text, and the first run has none: set data.validation above 0")
        return found

    def __call__(self, texts: Texts) -> Numbers:
        return {"repetition": _repetition(texts), "reverse nats": _reverse_nats(texts, self.held_out)}


def _repetition(texts: Texts) -> list[float | None]:
    """Of the 4-grams of words of each text, the share that another text has; None for a text of fewer words."""
    grams = [[*zip(*(text.split()[start:] for start in range(_REPEATED)))] for text in texts]
    owners = Counter(gram for own in grams for gram in set(own))
    return [sum(owners[gram] > 1 for gram in own) / len(own) if own else None for own in grams]


@dataclass(frozen=True)
class NGrams:
    """What followed each context of up to five bytes in some texts; ``log_prob`` reads another text with it."""

    counts: dict[bytes, Counter[int]]

    @classmethod
    def of(cls, texts: Iterable[str]) -> NGrams:
        """The counts of texts, each with a line end before and behind it."""
        counts: dict[bytes, Counter[int]] = defaultdict(Counter)
        for text in texts:
            data = f"\n{text}\n".encode()
            for place in range(1, len(data)):
                for order in range(min(_ORDER, place + 1)):
                    counts[data[place - order : place]][data[place]] += 1
        return cls(dict(counts))

    def prob(self, byte: int, before: bytes) -> float:
        """The probability of a byte behind others."""
        found = 1 / _CHARACTERS
        for order in range(min(_ORDER, len(before) + 1)):
            own = self.counts.get(before[len(before) - order :])
            if own is None:
                break
            found = (own[byte] + len(own) * found) / (own.total() + len(own))
        return found

    def nats(self, data: bytes) -> float:
        """Nats per byte of a text."""
        probs = (self.prob(data[place], data[max(0, place - _ORDER + 1) : place]) for place in range(len(data)))
        return -math.fsum(map(math.log, probs)) / len(data)


def _reverse_nats(texts: Texts, held_out: bytes) -> Sequence[float | None]:
    """Numbers whose mean is the nats per byte of the held-out text, and whose spread is the jackknife's."""
    whole, size = NGrams.of(texts).nats(held_out), len(texts)
    groups = min(_GROUPS, size)
    if groups < 2:
        return [whole] * size
    without = [
        NGrams.of(text for place, text in enumerate(texts) if place % groups != group).nats(held_out)
        for group in range(groups)
    ]
    mean = math.fsum(without) / groups
    variance = (groups - 1) / groups * math.fsum((each - mean) ** 2 for each in without)
    away = [mean - without[place % groups] for place in range(size)]
    centre = math.fsum(away) / size
    squares = math.fsum((each - centre) ** 2 for each in away)
    scale = size * math.sqrt(variance / squares) if squares > 0 else 0.0
    return [whole + scale * (each - centre) for each in away]
