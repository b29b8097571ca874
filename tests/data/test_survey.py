"""What is counted about a corpus before it is encoded."""

from __future__ import annotations

from duality.data.survey import _find_unbroken_words
from duality.tokenizers.library import LONGEST_WORD


def test_words_are_long_beyond_the_limit_and_end_at_any_white_space() -> None:
    at, beyond, wide = "a" * LONGEST_WORD, "b" * (LONGEST_WORD + 1), "\u4e00" * (LONGEST_WORD + 2)
    text = f"{at} {beyond}\u3000{wide}\n{at}\u00a0{at}"  # ideographic and no-break spaces are white space too
    assert _find_unbroken_words(text) == [beyond, wide]
    assert sum(map(len, _find_unbroken_words(text))) == 2 * LONGEST_WORD + 3
    assert _find_unbroken_words("") == []
