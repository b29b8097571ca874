"""The generated language: its stories are read back exactly, and its probabilities are those that are stated."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duality.data.corpus import prepare
from duality.data.documents import identity, read_documents
from duality.data.tales.corpus import Tales, is_held_out
from duality.data.tales.language import GIVEN, KINDS, language, levels
from duality.data.tales.reading import read
from duality.noise import Noise
from duality.tokenizers.specs import Bytes


def choices_of(level: str, count: int, seed: int = 1) -> list[dict[str, str]]:
    """The choices of some stories of a level."""
    return list(language(level).draw(Noise.of(seed, 0, torch.arange(count))))


@pytest.mark.parametrize("level", levels())
def test_a_story_is_read_back_as_its_choices(level: str) -> None:
    spoken = language(level)
    for choices in choices_of(level, 300):
        reading = read(spoken, spoken.text(choices))
        assert reading.consistent
        assert reading.choices == choices


@pytest.mark.parametrize("level", levels())
def test_what_is_consistent_is_the_text_of_its_choices(level: str) -> None:
    """Any word is put in the place of any other: the parser accepts exactly the texts that the choices make."""
    spoken = language(level)
    stories = [spoken.text(choices).split() for choices in choices_of(level, 40)]
    words = sorted({word for story in stories for word in story})
    accepted = 0
    for number, story in enumerate(stories):
        for place in range(len(story)):
            text = " ".join([*story[:place], words[(number + 7 * place) % len(words)], *story[place + 1 :]])
            reading = read(spoken, text)
            known = reading.choices
            whole = set(known) == set(spoken.choices) and spoken.text(known) == text
            exact = whole and all(known[name] in spoken.chances(name, known) for name in spoken.choices)
            assert reading.consistent == exact, text
            accepted += exact
    assert accepted


def test_every_story_of_the_smallest_language_has_its_own_text() -> None:
    spoken = language("tiny")
    stories = list(spoken.stories())
    assert len({spoken.text(choices) for choices, _ in stories}) == len(stories) == 192
    assert math.fsum(chance for _, chance in stories) == pytest.approx(1, abs=1e-12)
    assert spoken.entropy() == pytest.approx(-math.fsum(p * math.log(p) for _, p in stories), abs=1e-12)
    for choices, chance in stories:
        assert spoken.log_prob(choices) == pytest.approx(math.log(chance), abs=1e-12)


@pytest.mark.parametrize("level", levels())
def test_the_entropy_is_the_mean_of_the_log_probabilities(level: str) -> None:
    spoken = language(level)
    nats = -torch.tensor([spoken.log_prob(each) for each in choices_of(level, 4000)], dtype=torch.float64)
    assert abs(float(nats.mean()) - spoken.entropy()) < 4.5 * float(nats.std()) / math.sqrt(len(nats))


@pytest.mark.parametrize("level", levels())
def test_choices_have_the_stated_frequencies(level: str) -> None:
    """Chi-square of every choice, given those that it is drawn given, against its stated probabilities."""
    spoken, found = language(level), choices_of(level, 6000, seed=3)
    for name in spoken.choices:
        groups = Counter(tuple(each[other] for other in GIVEN.get(name, ())) for each in found)
        squares, degrees = 0.0, 0
        for group, count in groups.items():
            chances = spoken.chances(name, dict(zip(GIVEN.get(name, ()), group)))
            if count * min(chances.values()) < 5:
                continue
            seen = Counter(each[name] for each in found if tuple(each[other] for other in GIVEN.get(name, ())) == group)
            assert set(seen) <= set(chances)
            squares += sum((seen[value] - count * p) ** 2 / (count * p) for value, p in chances.items())
            degrees += len(chances) - 1
        # a chi-square of d degrees has the mean d and the variance 2 d
        assert squares < degrees + 5 * math.sqrt(2 * degrees) + 5, (name, squares, degrees)


BROKEN = [
    ("Emma was an odd boy who came to the park every Sunday.", "kinship", "girl"),
    ("Emma was a odd girl who came to the park every Sunday.", "article", "an"),
    ("Emma was an odd girl who came to the park every Sunday. There he bought two red hats.", "pronoun", "she"),
]


@pytest.mark.parametrize(("text", "kind", "expected"), BROKEN)
def test_what_is_broken_is_named(text: str, kind: str, expected: str) -> None:
    (broken,) = read(language("medium"), text).broken
    assert (broken.kind, broken.expected) == (kind, expected)
    assert text[broken.word.start : broken.word.stop] == broken.found


def test_every_kind_of_dependency_can_be_broken() -> None:
    """A wrong word in every slot of the largest language breaks a dependency of the slot's kind."""
    spoken, kinds = language("hard"), set[str]()
    for choices in choices_of("hard", 60):
        text = spoken.text(choices)
        for each in read(spoken, text).dependencies:
            for other in (
                "Emma",
                "Henry",
                "school",
                "books",
                "hats",
                "one",
                "two",
                "a",
                "an",
                "she",
                "he",
                "was",
                "were",
            ):
                wrong = text[: each.word.start] + other + text[each.word.stop :]
                kinds |= {found.kind for found in read(spoken, wrong).broken}
    assert kinds == set(KINDS)


def test_amounts_and_names_that_cannot_be_are_broken() -> None:
    spoken = language("medium")
    start = "Emma was an odd girl who came to the park every Sunday. There she bought two red hats."
    text = f"{start} Soon her sister Emma came, too. Emma kept one, because three were for Emma."
    assert [(each.kind, each.expected) for each in read(spoken, text).broken] == [("distinct", None), ("count", None)]


def test_one_wrong_sentence_does_not_hide_the_others() -> None:
    spoken = language("easy")
    choices = choices_of("easy", 1)[0]
    first, _, third = spoken.text(choices).split(". ")
    reading = read(spoken, f"{first}. The sun has set on it. {third}")
    assert not reading.grammatical
    assert len(reading.unreadable) == 1
    assert reading.choices["hero"] == choices["hero"]
    assert not read(spoken, f"{first}. {third}").grammatical
    assert not read(spoken, "").grammatical


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["Emma", "was", "There", "she", "bought", "a", "red", "book.", "the", ".", "", "é"])))
def test_any_text_can_be_read(words: list[str]) -> None:
    read(language("easy"), " ".join(words))


def test_no_story_is_in_both_parts(tmp_path: Path) -> None:
    folder = Tales("tiny", 2000, 3).fetch(tmp_path)
    train, validation = ((folder / f"{part}.txt").read_text().splitlines() for part in ("train", "validation"))
    assert (len(train), len(validation)) == (2000, 200)
    assert not set(train) & set(validation)
    assert all(map(is_held_out, validation))
    # about a tenth of the language is held out
    assert 8 <= sum(is_held_out(language("tiny").text(each)) for each, _ in language("tiny").stories()) <= 32
    assert Tales("tiny", 2000, 3).fetch(tmp_path) == folder
    assert (Tales("tiny", 2000, 4).fetch(tmp_path) / "train.txt").read_text().splitlines() != train


def test_the_first_stories_do_not_depend_on_how_many_there_are() -> None:
    assert list(islice(Tales("easy", 10).draw(), 1200)) == list(islice(Tales("easy", 5000).draw(), 1200))


def test_tales_are_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path))
    corpus = prepare("tales:easy:200", Bytes())
    texts = [document.name for document in read_documents("tales:easy:200", part="validation")]
    assert len(texts) == len(corpus.validation.document_ends) == 20
    assert len(corpus.train.document_ends) == 200
    assert identity("tales:easy:200") != identity("tales:easy:200:2")


@pytest.mark.parametrize(
    "spec", ["tales:", "tales:huge", "tales:easy:x", "tales:easy:0", "tales:easy:1:2:3", "tales:easy:9999999999"]
)
def test_what_names_no_tales_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="write tales:LEVEL:STORIES:SEED"):
        Tales.of(spec)
