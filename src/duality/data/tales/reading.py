"""The parser of the tales: from any text to the choices of its story, and which of its dependencies are broken.

A text is read scene by scene. Where no variant of a scene fits, one sentence is *unreadable* and the text is not
grammatical; reading goes on behind it. Every slot that is not the source of its variable is a dependency: its word is
compared with the one that the source decides. So a boy named Emma is one broken dependency of the kind "kinship", and
the rest of the story may be right.

    grammatical   every scene is there, in order, and nothing else
    consistent    grammatical, and no dependency is broken: the text is in the language

What must hold: ``read(language, language.text(choices))`` is consistent and has these choices; what is one word away
from a story is not that story (tests/data/test_tales.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from duality.data.tales.language import GIVEN, Language, Slot, Variant


@dataclass(frozen=True)
class Span:
    """Characters ``start`` to ``stop`` of a text."""

    start: int
    stop: int


@dataclass(frozen=True)
class Dependency:
    """A word that the choice at ``source`` decides. ``expected`` is what it should be, None if no word fits."""

    kind: str
    word: Span
    source: Span
    found: str
    expected: str | None
    distance: int
    """how many words there are from one to the other"""

    @property
    def broken(self) -> bool:
        """Whether another word stands there."""
        return self.found != self.expected


@dataclass(frozen=True)
class Reading:
    """What a text says: its choices, as far as it can be read, its dependencies, and sentences that are unreadable."""

    choices: dict[str, str]
    dependencies: tuple[Dependency, ...]
    unreadable: tuple[Span, ...]
    grammatical: bool

    @property
    def broken(self) -> tuple[Dependency, ...]:
        """The dependencies that are broken."""
        return tuple(each for each in self.dependencies if each.broken)

    @property
    def consistent(self) -> bool:
        """Whether the text is in the language."""
        return self.grammatical and not self.broken


@dataclass(frozen=True)
class _Found:
    """A slot of a text, and the characters of its word."""

    slot: Slot
    word: str
    span: Span


@cache
def _pattern(language: Language, variant: Variant) -> re.Pattern[str]:
    """What finds a variant and the words of its slots; a slot may have any word of its list."""
    found = re.escape(variant.literals[0])
    for slot, literal in zip(variant.slots, variant.literals[1:]):
        longest_first = sorted(language.alternatives(slot), key=len, reverse=True)
        found += f"({'|'.join(map(re.escape, longest_first))}){re.escape(literal)}"
    return re.compile(found + "(?= |$)")


def read(language: Language, text: str) -> Reading:
    """The reading of a text."""
    choices: dict[str, str] = {}
    found: list[_Found] = []
    unreadable: list[Span] = []
    place, scene, skipped = 0, 0, False
    while place < len(text):
        matches = (
            (number, variant, match)
            for number in range(scene, len(language.scenes))
            for variant, each in enumerate(language.scenes[number])
            if (match := _pattern(language, each).match(text, place))
        )
        number, variant, match = next(matches, (scene, 0, None))
        if match is None:
            stop = text.find(".", place) + 1 or len(text)
            unreadable.append(Span(place, stop))
            place = stop + len(text[stop:]) - len(text[stop:].lstrip())
            continue
        skipped |= number > scene
        choices[str(number)], scene = str(variant), number + 1
        slots = language.scenes[number][variant].slots
        found += [_Found(slot, match[i], Span(*match.span(i))) for i, slot in enumerate(slots, 1)]
        place = match.end() + 1
    sources = _bind(language, found, choices)
    dependencies = tuple(_dependencies(language, text, found, sources, choices))
    whole = scene == len(language.scenes) and not skipped and not unreadable and text == text.strip()
    return Reading(choices, dependencies, tuple(unreadable), whole)


def _bind(language: Language, found: list[_Found], choices: dict[str, str]) -> dict[str, _Found]:
    """The source of each variable that the text has, whose value is put into ``choices``."""
    sources: dict[str, _Found] = {}
    for each in found:
        if each.slot.is_source and each.slot.variable not in sources:
            sources[each.slot.variable] = each
            choices[each.slot.variable] = language.alternatives(each.slot)[each.word]
    return sources


def _dependencies(
    language: Language, text: str, found: list[_Found], sources: dict[str, _Found], choices: dict[str, str]
) -> Iterator[Dependency]:
    """The dependencies whose source the text has."""

    def depend(each: _Found, source: _Found, expected: str | None, kind: str) -> Dependency:
        first, second = sorted((each.span, source.span), key=lambda span: span.start)
        distance = len(text[first.start : second.start].split())
        return Dependency(kind, each.span, source.span, each.word, expected, distance)

    for each in found:
        slot = each.slot
        if slot.form == "rest":
            if "number" in sources and "amount" in sources:
                yield depend(each, sources["number"], language.word(slot, choices), slot.kind)
        elif (source := sources.get(slot.variable)) is None:
            continue
        elif source is not each:
            yield depend(each, source, language.form(slot, choices[slot.variable]), slot.kind)
        else:
            for other in GIVEN.get(slot.variable, ()):
                if other in sources and other != "number":
                    same = choices[other] == choices[slot.variable]
                    yield depend(each, sources[other], None if same else each.word, "distinct")
