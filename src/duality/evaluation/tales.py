"""Tales: a scorer of stories of the generated language (``data.tales``), whose truth is known.

    grammatical    share of the texts whose sentences are those of a story, in order
    consistent     share of the texts that are in the language: grammatical, and no dependency is broken
    coverage       different stories of the held-out tenth of the language that are hit, divided by the number of texts
    uniqueness     of the consistent texts, those that are different, divided by all
    language nats  -log probability of a consistent text in the language; the entropy of the language if it is learned
    divergence     KL(frequencies of the choices || their probabilities), in nats, summed over the choices of a text
    broken KIND    of the dependencies of a kind in a text, the share that is broken

Coverage falls both when texts are wrong and when they repeat, and what was learned by heart does not count: it is 0.1
for a model that has learned the language, as long as its texts are far fewer than the stories.

The divergence is that of all texts together. A text counts with its log ratios, log f(v) - log p(v) for each of its
choices v, f their frequencies in these texts given the choices that they are drawn given. Of n texts of the language
these are above 0 by (number of values - 1) / 2 for each choice and 1 / n, which is subtracted. Fewer than 200 texts
whose choices can be read have no divergence: that correction is larger than what is measured.

What must hold: texts of the language are all consistent, and their divergence is 0 up to its error.
"""

from __future__ import annotations

import html
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duality.data.tales.corpus import NAME, VERSION, Tales, is_held_out
from duality.data.tales.language import GIVEN, Choices, Language
from duality.data.tales.reading import Reading, read
from duality.evaluation.metrics import occupancy
from duality.evaluation.scorers import Numbers, ScorerContext, Texts
from duality.files.atomic import write_atomically

_SHOWN = 20  # texts of a page
_FEWEST = 200  # texts whose frequencies say something
_PAGE = """<!doctype html><meta charset="utf-8"><title>Tales</title>
<style>
body { font: 17px/1.6 Georgia, serif; max-width: 42em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }
p { margin: 1.2em 0 } u { text-decoration: underline wavy #b00020; text-underline-offset: 4px } small { color: #666 }
</style>
"""


@dataclass(frozen=True)
class TalesScorer:
    """The scorer of stories of a level of the language."""

    language: Language

    @classmethod
    def from_context(cls, context: ScorerContext) -> TalesScorer:
        """The scorer for runs that were trained on tales."""
        if context.corpus.partition(":")[0] != NAME:
            raise ValueError(
                f"the scorer tales reads stories of the corpus {NAME}, and the first run was trained on "
                f"{context.corpus or 'another one'}: train one with --data {NAME}"
            )
        return cls(Tales.of(context.corpus).language)

    @property
    def name(self) -> str:
        return "tales"

    @property
    def version(self) -> str:
        """The level and the version of the language decide the numbers."""
        return f"{self.language.level}, version {VERSION}"

    @property
    def columns(self) -> tuple[str, ...]:
        broken = (f"broken {kind}" for kind in self.language.kinds)
        return ("grammatical", "consistent", "coverage", "uniqueness", "language nats", "divergence", *broken)

    def __call__(self, texts: Texts) -> Numbers:
        readings = [read(self.language, text) for text in texts]
        right = [text if reading.consistent else None for text, reading in zip(texts, readings)]
        unique = iter(occupancy([text for text in right if text is not None]))
        found: dict[str, Sequence[float | None]] = {
            "grammatical": [float(each.grammatical) for each in readings],
            "consistent": [float(each.consistent) for each in readings],
            "coverage": occupancy([text if text is not None and is_held_out(text) else None for text in right]),
            "uniqueness": [None if text is None else next(unique) for text in right],
            "language nats": [-self.language.log_prob(each.choices) if each.consistent else None for each in readings],
            "divergence": _divergence(self.language, readings),
        }
        for kind in self.language.kinds:
            found[f"broken {kind}"] = [_share_broken(each, kind) for each in readings]
        return found

    def draw(self, texts: Texts, path: Path) -> list[Path]:
        """The first texts as a page, PATH.html: what is broken is underlined, and says what would be right."""
        shown = "\n".join(_paragraph(text, read(self.language, text)) for text in texts[:_SHOWN])
        target = path.with_name(path.name + ".html")
        write_atomically(target, f"{_PAGE}<h1>Tales</h1>\n{shown}\n")
        return [target]


def _share_broken(reading: Reading, kind: str) -> float | None:
    """Of the dependencies of a kind, the share that is broken; None if the text has none."""
    own = [each.broken for each in reading.dependencies if each.kind == kind]
    return sum(own) / len(own) if own else None


def _divergence(language: Language, readings: Sequence[Reading]) -> list[float | None]:
    """Numbers of the texts whose choices are possible; their mean is the divergence of all frequencies."""

    def is_possible(choices: Choices) -> bool:
        return all(choices[name] in language.chances(name, choices) for name in language.choices)

    possible = [each.choices if each.grammatical and is_possible(each.choices) else None for each in readings]
    known = [each for each in possible if each is not None]
    if len(known) < _FEWEST:
        return [None] * len(possible)
    ratios = [0.0] * len(known)
    for name in language.choices:
        groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for number, choices in enumerate(known):
            groups[tuple(choices[other] for other in GIVEN.get(name, ()))].append(number)
        for given, members in groups.items():
            chances = language.chances(name, dict(zip(GIVEN.get(name, ()), given)))
            seen = Counter(known[number][name] for number in members)
            for number in members:
                value = known[number][name]
                ratios[number] += math.log(seen[value] / len(members) / chances[value])
                ratios[number] -= (len(chances) - 1) / 2 / len(members)
    following = iter(ratios)
    return [None if choices is None else next(following) for choices in possible]


def mark_mistakes(reading: Reading, text: str) -> list[tuple[str, str]]:
    """A text in pieces, each with what is wrong with it; '' where nothing is.

    >>> from duality.data.tales.language import language
    >>> text = "Emma was a tall boy who came to the park every Sunday."
    >>> [piece for piece in mark_mistakes(read(language("easy"), text), text) if piece[1]]
    [('boy', 'kinship: girl')]
    """
    wrong = [(each.word, f"{each.kind}: {each.expected or 'no word fits'}") for each in reading.broken]
    wrong += [(span, "no sentence of the language") for span in reading.unreadable]
    pieces, place = [], 0
    for span, reason in sorted(wrong, key=lambda each: each[0].start):
        if span.start >= place:
            pieces += [(text[place : span.start], ""), (text[span.start : span.stop], reason)]
            place = span.stop
    return [piece for piece in (*pieces, (text[place:], "")) if piece[0]]


def _paragraph(text: str, reading: Reading) -> str:
    """A text as a paragraph of a page."""
    pieces = (
        f'<u title="{html.escape(reason)}">{html.escape(piece)}</u>' if reason else html.escape(piece)
        for piece, reason in mark_mistakes(reading, text)
    )
    count = len(reading.broken) + len(reading.unreadable)
    verdict = "consistent" if reading.consistent else f"{count} mistake{'s' * (count != 1)}" if count else "not whole"
    return f"<p>{''.join(pieces)} <small>({verdict})</small></p>"
