"""Splitting: two parts that join to the corpus, cut at line ends near the requested position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duality.data.documents import Document
from duality.data.survey import Split, _cut_position

FRACTIONS = st.floats(0.01, 0.99)


def text_of(document: Document) -> str:
    """The whole text."""
    return "".join(document.pieces)


def document(text: str, size: int = 7) -> Document:
    """A document in pieces of `size` characters."""
    return Document("a", tuple(text[start : start + size] for start in range(0, len(text), size)))


@given(st.lists(st.text(alphabet="ab \n", max_size=60), max_size=4), FRACTIONS)
def test_by_position_the_parts_join_to_each_document(texts: list[str], fraction: float) -> None:
    split = Split("position", fraction, len(texts))
    training = [text_of(part) for part in split.select(map(document, texts), held_out=False)]
    held_out = iter([text_of(part) for part in split.select(map(document, texts), held_out=True)])
    assert len(training) == len(texts)
    for text, first in zip(texts, training, strict=True):
        assert first + (next(held_out) if first != text else "") == text
    assert next(held_out, None) is None


@given(st.text(alphabet="ab \n", min_size=1, max_size=300), FRACTIONS)
def test_the_cut_is_near_the_requested_position(text: str, fraction: float) -> None:
    cut, end = _cut_position(document(text), fraction)
    assert end == len(text)
    assert abs((end - cut) - end * fraction) <= end * fraction / 2 + 1


def test_the_cut_is_at_the_nearest_line_end() -> None:
    text = "one two three\nfour five six\nseven eight nine\nten eleven\n"
    cut, _ = _cut_position(document(text), 0.5)
    assert text[:cut] == "one two three\nfour five six\n"


def test_without_line_ends_the_cut_is_before_a_space() -> None:
    text = "one two three four five six seven eight"
    cut, _ = _cut_position(document(text), 0.5)
    assert text[:cut] == "one two three four"


def test_without_any_border_the_cut_is_exact() -> None:
    assert _cut_position(document("x" * 1000), 0.05) == (950, 1000)


@given(st.lists(st.integers(0, 10**19), max_size=30), FRACTIONS, st.integers(1, 9))
def test_no_number_is_cut(numbers: list[int], fraction: float, size: int) -> None:
    text = " ".join(map(str, numbers))
    cut, end = _cut_position(document(text, size), fraction)
    assert (text[:cut].split(), text[cut:end].split()) in [
        ([str(number) for number in numbers[:place]], [str(number) for number in numbers[place:]])
        for place in range(len(numbers) + 1)
    ]


def test_a_cut_inside_a_number_moves_to_its_nearer_end() -> None:
    assert _cut_position(document("ab12345678"), 0.6) == (2, 10)
    assert _cut_position(document("ab12345678"), 0.2) == (10, 10)
    assert _cut_position(document("ab12cd5678"), 0.4) == (6, 10)
    assert _cut_position(document("7" * 1000), 0.05) == (950, 1000)  # too many digits to be a number


@pytest.mark.parametrize(("count", "fraction", "held_out"), [(100, 0.05, 5), (3, 0.05, 1), (10, 0.26, 3)])
def test_by_document_the_last_ones_are_held_out(count: int, fraction: float, held_out: int) -> None:
    documents = [document(str(number)) for number in range(count)]
    split = Split.choose("document", fraction, count)
    assert list(split.select(documents, held_out=False)) == documents[:-held_out]
    assert list(split.select(documents, held_out=True)) == documents[-held_out:]


def test_auto_depends_on_the_number_of_documents() -> None:
    assert Split.choose("auto", 0.05, 99).by == "position"
    assert Split.choose("auto", 0.05, 100).by == "document"


def test_impossible_splits() -> None:
    with pytest.raises(ValueError, match="'auto', 'document' or 'position'; got 'random'"):
        Split.check("random", 0.05)
    for fraction in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=f"between 0 and 1; got {fraction}"):
            Split.choose("auto", fraction, 10)
    with pytest.raises(
        ValueError, match=r"leaves nothing to train on: the corpus has 1 document\(s\); use split='posi"
    ):
        Split.choose("document", 0.05, 1)
