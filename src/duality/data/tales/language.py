"""A language of short stories: independent choices with stated probabilities, and the text that they make.

A level has *scenes*, one after the other. A scene has variants, sentences with slots:

    {hero}          a variable: the first slot of it, the *source*, is a choice; later ones are *returns*
    {she:hero}      a form of a variable, which is decided by its value: she or he; {She:hero} begins a sentence

So a slot is either a choice, or a *dependency*: its word is decided by a choice elsewhere in the story.

    pronoun    she, his, him            kinship   girl, sister          article   a tall, an old
    name       the hero returns         place     the place returns     object    the book, the books
    number     one was, two were        count     what is left          order     which of two places came first
    distinct   two names, or two places, that must differ

A variable is chosen from a list of words: the word of rank i (from 0) has a probability proportional to 1 / (i + 3),
without the words that it must differ from; an amount is uniform below its number; the variants of a scene have the
same probability. Hence the probability of a story is a product, and the entropy of the language a sum over variables.

What must hold: two stories with different choices have different texts, and every story is read back as the choices
that made it (``reading``); the probabilities of all stories add up to 1 (tests/data/test_tales.py).
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TypedDict

from duality.noise import Noise
from duality.registry import suggestion

Choices = Mapping[str, str]
"""The value of each variable, and under the number of a scene ("0", "1", ...) that of its variant."""

KINDS = ("pronoun", "kinship", "article", "name", "place", "object", "number", "count", "order", "distinct")
_TABLE = Path(__file__).with_name("tales.json")
_SLOT = re.compile(r"\{(?:(\w+):)?(\w+)\}")
_LISTS = {"hero": "name", "friend": "name", "first": "place", "second": "place"}  # of a variable without its own
GIVEN = {"friend": ("hero",), "first": ("place",), "second": ("place", "first"), "amount": ("number",)}
_FORMS = {  # of a name: female, male
    "girl": ("girl", "boy"),
    "sister": ("sister", "brother"),
    "she": ("she", "he"),
    "his": ("her", "his"),
    "him": ("her", "him"),
}
_KINDS = {"girl": "kinship", "sister": "kinship", "a": "article", "books": "object", "was": "number", "rest": "count"}


@dataclass(frozen=True)
class Slot:
    """A place of a sentence that a choice decides: a ``form`` of a ``variable``, or the variable itself if it is ""."""

    form: str
    variable: str
    capital: bool = False

    @property
    def kind(self) -> str:
        """The kind of the dependency, where the slot is not the source of its variable."""
        if not self.form:
            return "order" if self.variable in ("first", "second") else _LISTS.get(self.variable, self.variable)
        return _KINDS.get(self.form, "pronoun")

    @property
    def is_source(self) -> bool:
        """Whether the first such slot of a story is the source of its variable."""
        return self.form in ("", "books")


@dataclass(frozen=True)
class Variant:
    """A sentence: literal texts and, between them, slots."""

    literals: tuple[str, ...]
    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, text: str) -> Variant:
        """The variant that a text with {slots} describes."""
        parts = _SLOT.split(text)
        slots = []
        for form, variable in zip(parts[1::3], parts[2::3]):
            own = "rest" if variable == "rest" else (form or "")
            slots.append(Slot(own.lower(), variable, capital=own[:1].isupper()))
        return cls(tuple(parts[::3]), tuple(slots))

    def fill(self, words: Iterator[str]) -> str:
        """The sentence with words in its slots."""
        first, *rest = self.literals
        return first + "".join(word + literal for word, literal in zip(words, rest))


@dataclass(frozen=True, eq=False)
class Language:
    """A level of the language: its lists of words and its scenes."""

    level: str
    lists: Mapping[str, tuple[str, ...]]
    female: frozenset[str]
    plurals: Mapping[str, str]
    scenes: tuple[tuple[Variant, ...], ...]
    choices: tuple[str, ...]
    """The names of all choices, each after those that it is drawn given."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of dependencies that its stories have."""
        found, seen = set[str](), set[str]()
        for slot in (slot for scene in self.scenes for each in scene for slot in each.slots):
            if slot.is_source and slot.variable not in seen:
                seen.add(slot.variable)
                found |= {"distinct"} if {*GIVEN.get(slot.variable, ())} - {"number"} else set()
            else:
                found.add(slot.kind)
        return tuple(kind for kind in KINDS if kind in found)

    def words(self, variable: str) -> tuple[str, ...]:
        """The words that a variable can be."""
        return self.lists[_LISTS.get(variable, variable)]

    def chances(self, name: str, before: Choices) -> dict[str, float]:
        """The probability of each value of a choice, given the choices before it."""
        if name.isdecimal():
            count = len(self.scenes[int(name)])
            return {str(number): 1 / count for number in range(count)}
        words = self.words(name)
        if name == "amount":
            fewer = words[: self.words("number").index(before["number"]) + 1]  # amounts begin with one
            return dict.fromkeys(fewer, 1 / len(fewer))
        excluded = {before[each] for each in GIVEN.get(name, ())}
        weights = {word: 1 / (rank + 3) for rank, word in enumerate(words) if word not in excluded}
        total = sum(weights.values())
        return {word: weight / total for word, weight in weights.items()}

    def draw(self, noise: Noise) -> Iterator[dict[str, str]]:
        """The choices of a story for each sample of the noise."""

        @cache
        def ends(name: str, given: tuple[str, ...]) -> tuple[tuple[str, ...], list[float]]:
            chances = self.chances(name, dict(zip(GIVEN.get(name, ()), given)))
            return tuple(chances), [*accumulate(chances.values())][:-1]

        for row in noise.uniform("tales", len(self.choices)).tolist():
            found: dict[str, str] = {}
            for name, chance in zip(self.choices, row):
                values, bounds = ends(name, tuple(found[each] for each in GIVEN.get(name, ())))
                found[name] = values[bisect_right(bounds, chance)]
            yield found

    def stories(self) -> Iterator[tuple[dict[str, str], float]]:
        """All stories of the language with their probabilities: of its smallest level, others have too many."""

        def extend(
            names: tuple[str, ...], before: dict[str, str], chance: float
        ) -> Iterator[tuple[dict[str, str], float]]:
            if not names:
                yield before, chance
                return
            for value, own in self.chances(names[0], before).items():
                yield from extend(names[1:], {**before, names[0]: value}, chance * own)

        return extend(self.choices, {}, 1.0)

    def log_prob(self, choices: Choices) -> float:
        """The log-probability of a story of the language, in nats."""
        return sum(math.log(self.chances(name, choices)[choices[name]]) for name in self.choices)

    def entropy(self) -> float:
        """The entropy of a story in nats: the sum over its choices of their entropies, given those before them."""
        return sum(
            chance * -sum(each * math.log(each) for each in self.chances(name, given).values())
            for name in self.choices
            for given, chance in self._joint(GIVEN.get(name, ()))
        )

    def _joint(self, names: tuple[str, ...]) -> list[tuple[dict[str, str], float]]:
        """The joint distribution of some variables, each given those before it."""
        found: list[tuple[dict[str, str], float]] = [({}, 1.0)]
        for name in names:
            found = [
                ({**before, name: value}, chance * own)
                for before, chance in found
                for value, own in self.chances(name, before).items()
            ]
        return found

    def form(self, slot: Slot, value: str) -> str:
        """The word of a slot whose variable has a value."""
        if slot.form in _FORMS:
            word = _FORMS[slot.form][value not in self.female]
        elif slot.form == "a":
            word = "an" if value[0] in "aeiou" else "a"
        elif slot.form == "books":
            word = self.plurals[value]
        elif slot.form == "was":
            word = "was" if value == "one" else "were"
        else:
            word = value
        return word.capitalize() if slot.capital else word

    def word(self, slot: Slot, choices: Choices) -> str | None:
        """The word of a slot, given the choices; None if there is none, because more is given away than there was."""
        if slot.form == "rest":
            amounts = self.words("amount")
            left = self.words("number").index(choices["number"]) - amounts.index(choices["amount"])
            return amounts[left] if left >= 0 else None
        return self.form(slot, choices[slot.variable])

    def alternatives(self, slot: Slot) -> dict[str, str]:
        """Every word that a slot can have, with a value of its variable that leads to it."""
        if slot.form == "rest":
            return {word: word for word in self.words("amount")}
        return {self.form(slot, value): value for value in self.words(slot.variable)}

    def text(self, choices: Choices) -> str:
        """The story that choices make."""
        chosen = [scene[int(choices[str(number)])] for number, scene in enumerate(self.scenes)]
        return " ".join(each.fill(self.word(slot, choices) or "" for slot in each.slots) for each in chosen)


def levels() -> tuple[str, ...]:
    """The names of the levels, from the smallest language to the largest."""
    return tuple(_read_table()["levels"])


class _Words(TypedDict):
    """The words of names and objects; those of the other lists are under ``lists``."""

    name: dict[str, list[str]]
    object: dict[str, str]
    lists: dict[str, list[str]]


class _Level(TypedDict):
    """How many words of each list a level has, and its scenes."""

    sizes: dict[str, int]
    scenes: list[list[str]]


class _Table(TypedDict):
    """What tales.json has."""

    words: _Words
    levels: dict[str, _Level]


@cache
def _read_table() -> _Table:
    table: _Table = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table


@cache
def language(level: str) -> Language:
    """The language of a level."""
    table = _read_table()
    if level not in table["levels"]:
        raise ValueError(f"no level {level!r} of the tales: {suggestion(level, levels())}")
    words, content = table["words"], table["levels"][level]
    names = [name for pair in zip(words["name"]["female"], words["name"]["male"]) for name in pair]
    every = {"name": names, "object": [*words["object"]], **words["lists"]}
    lists = {name: tuple(values[: content["sizes"].get(name, 0)]) for name, values in every.items()}
    scenes = tuple(tuple(map(Variant.of, scene)) for scene in content["scenes"])
    found = dict.fromkeys(
        slot.variable for scene in scenes for each in scene for slot in each.slots if slot.form != "rest"
    )
    # "first" is drawn before "second", "number" before "amount": such a variable stands behind the others
    order = sorted(found, key=lambda name: len(GIVEN.get(name, ())))
    choices = (*map(str, range(len(scenes))), *order)
    return Language(level, lists, frozenset(words["name"]["female"]), words["object"], scenes, choices)
