"""Books: paragraphs become lines, and only white space, title and licence are removed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duality.data.conversions import _clean_book

BOOK = """[Emma by Jane Austen 1816]


CHAPTER I


Emma Woodhouse, handsome, clever,  and rich, with a
comfortable home.

     "A most pitiful business!--
Selina would stare when she heard of it to-
day."



End of Project Gutenberg's Emma

A licence of many lines.
"""


def test_a_paragraph_becomes_a_line() -> None:
    assert _clean_book(BOOK) == (
        "CHAPTER I\n"
        "Emma Woodhouse, handsome, clever, and rich, with a comfortable home.\n"
        '"A most pitiful business!--Selina would stare when she heard of it to-day."\n'
    )


def test_only_the_first_line_can_be_the_title() -> None:
    assert _clean_book("CHAPTER I\n\n[Illustration]\n\nText.\n") == "CHAPTER I\n[Illustration]\nText.\n"


def test_line_ends_of_the_windows_system_are_white_space() -> None:
    assert _clean_book("One\r\ntwo.\r\n\r\nThree.\r\n") == "One two.\nThree.\n"


def test_an_empty_book_gives_an_empty_text() -> None:
    assert _clean_book("") == ""


@given(st.lists(st.text(alphabet="ab -.\n", max_size=30), max_size=6))
def test_no_character_is_lost(parts: list[str]) -> None:
    text = "\n\n".join(parts)
    cleaned = _clean_book(text)
    assert "".join(cleaned.split()) == "".join(text.split())
    assert "\n\n" not in cleaned
    assert "  " not in cleaned
    assert _clean_book(cleaned.replace("\n", "\n\n")) == cleaned
