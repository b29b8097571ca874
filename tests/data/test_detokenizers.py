"""Detokenizers: the same text as the published code of the papers gives, on real benchmarks where they are found."""

from __future__ import annotations

import hashlib
import json
import lzma
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs import ROOT

from duality.data.detokenizers import DETOKENIZERS

BENCHMARKS = ROOT.parent / "shared" / "data"

# Of the lines of each file, detokenized by the published code and joined by line feeds.
REAL = {
    "ptb": ("ptb/ptb.test.txt.xz", "3472404ed8805878f268c817fe852643c5eddbc97348020fc04a02d4c55d2bd9"),
    "wikitext": ("wikitext-2/wiki.test.tokens.xz", "10be186f26f809ce3ae02662be9f7a9307dde34deb9c822d4cf394d8c9f6236b"),
    "lm1b": ("lm1b/news.en.heldout-00000-of-00050", "6138a3d2a21618efdc4edded8e2ef86cf182c48a09306d957f487aac84ca5016"),
    "lambada": ("lambada/lambada_test.jsonl.xz", "07a939c4827bbc1f766249412e89f0b36e52267e9b83348136c4b92f684311ff"),
}
# Of `made_up_lines()`, detokenized by the published code and joined by line feeds.
MADE_UP = {
    "ptb": "ceda14c3d00b5058157860f65116f0a1e113d198cc9e153dfcdb44a23e19b385",
    "wikitext": "5eb99bff80891b43a671efb82af3cdcf08c8660ff2b43467e9d37c66b6aee866",
    "lm1b": "111282f90bf87810b88dd22922db17fbd3c7958a1299004202bf025912c73946",
    "lambada": "c74bf68da1f98d8ee6c65b69b68d90d0712cc10a740f9bce57f4461291c6c512",
    "scientific-papers": "efa570d5bf1c43958d1c81473da409bcb4ccb591539b5884f6899dee18c96648",
}

BY_HAND = [
    ("ptb", "the u.s. 's stocks did n't fall", "the u.s.'s stocks didn't fall"),
    ("ptb", "the workers ' N N N dollars", "the workers' 1 1 1 dollars"),
    ("ptb", "it paid $ N million or # N a share N", "it paid $1 million or #1 a share N"),
    ("ptb", "either\\/or <unk> \n a line", "either/or ?\na line"),
    ("wikitext", " = = = Early life = = = \n", " === Early life ===\n"),
    (
        "wikitext",
        "a guest @-@ starring role in 1 @,@ 000 films , 2 @.@ 5 %",
        "a guest-starring role in 1,000 films, 2.5 %",
    ),
    ("wikitext", 'the " second " ( or [ last ] ) one ; at 5 ° C', 'the "second" (or [last]) one; at 5°C'),
    ("wikitext", "the actors ' guild . It 's new", "the actors'guild. It's new"),
    ("wikitext", "N N N", "N 1 N"),
    ("wikitext", "a , , b", "a, , b"),
    ("lm1b", "He said : \" We are ' here ' ( now ) . \" Then left .", "He said: \"We are 'here' (now) .\" Then left."),
    ("lm1b", "It 's at http : / / a.org / b , for $ 5 or £ 4 ?", "It's at http://a.org/b, for $5 or £4?"),
    ("lm1b", "Stop ! Now !", "Stop! Now!"),
    ("lm1b", "in 3.5 . Yes", "in 3.5 . Yes"),
    ("lambada", "  “Yes,” she said \n", '\n"Yes," she said'),
    ("scientific-papers", "( see [ 1 ] ) , at http : / / a.b .", "(see [1]), at http:// a.b ."),
    ("ag-news", "women #39;s platform", "women's platform"),
    ("ag-news", "Bush #39;s  quot;neutral quot; plan", 'Bush\'s "neutral" plan'),
    ("ag-news", "quot;Yes quot;", '"Yes"'),
    ("ag-news", "Cable  amp; Wireless", "Cable & Wireless"),
    ("ag-news", "&lt;b&gt;AT&T&lt;/b&gt; &#8364;5 &unknown; &amp;lt;", "<b>AT&T</b> €5 &unknown; &lt;"),
    ("ag-news", "the\\band cost \\$5", "the\nband cost $5"),
]


@pytest.mark.parametrize(("name", "given_text", "expected"), BY_HAND)
def test_by_hand(name: str, given_text: str, expected: str) -> None:
    assert DETOKENIZERS[name](given_text) == expected


def made_up_lines() -> list[str]:
    """Lines of what the rules look for, in any order."""
    draw = random.Random(0)
    words = """' s n't N 1 $ # ( ) [ ] { } " = @-@ @,@ @.@ . , : ; ? ! / \\/ ° a w é £ “ ” <unk> /' 5/"""
    pieces = [*words.split(" "), " ", "\n", "http : / / ", "https : / / "]
    spaces = ("", " ", " ")
    return ["".join(draw.choice(pieces) + draw.choice(spaces) for _ in range(draw.randrange(40))) for _ in range(5000)]


def digest(name: str, lines: list[str]) -> str:
    return hashlib.sha256("\n".join(map(DETOKENIZERS[name], lines)).encode()).hexdigest()


@pytest.mark.parametrize("name", MADE_UP)
def test_made_up_lines_read_as_by_the_published_code(name: str) -> None:
    assert digest(name, made_up_lines()) == MADE_UP[name]


def real_lines(name: str) -> list[str]:
    """The documents of a benchmark as the published code is given them: sentences of the Penn Treebank are stripped."""
    path = BENCHMARKS / REAL[name][0]
    if not path.is_file():
        pytest.skip(f"the benchmark {name} is not on this machine ({REAL[name][0]})")
    data = path.read_bytes()
    lines = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8").removesuffix("\n").split("\n")
    if name == "lambada":
        return [str(json.loads(line)["text"]) for line in lines]
    return [line.strip() for line in lines] if name == "ptb" else lines


@pytest.mark.parametrize("name", REAL)
def test_benchmarks_read_as_by_the_published_code(name: str) -> None:
    assert digest(name, real_lines(name)) == REAL[name][1]


def test_no_trace_of_the_tokens_is_left_in_a_benchmark() -> None:
    treebank = list(map(DETOKENIZERS["ptb"], real_lines("ptb")))
    assert not any(mark in line for line in treebank for mark in ("<unk>", " n't", " 's", " N ", "\\/"))
    wiki = list(map(DETOKENIZERS["wikitext"], real_lines("wikitext")))
    assert not any(mark in line for line in wiki for mark in ("@-@", "@,@", "@.@", " , ", " ; ", "= ="))


@given(st.text())
def test_lambada_is_changed_once(text: str) -> None:
    once = DETOKENIZERS["lambada"](text)
    assert DETOKENIZERS["lambada"](once) == once


def test_the_treebank_is_changed_once() -> None:
    once = list(map(DETOKENIZERS["ptb"], real_lines("ptb")))
    assert list(map(DETOKENIZERS["ptb"], once)) == once


@pytest.mark.parametrize("name", ["wikitext", "lm1b", "scientific-papers"])
def test_a_second_pass_may_change_the_text(name: str) -> None:
    """So detokenizers are applied once, as by the published code."""
    once = list(map(DETOKENIZERS[name], made_up_lines()))
    assert list(map(DETOKENIZERS[name], once)) != once


@given(st.text(st.characters(exclude_characters="&;\\")))
def test_plain_news_stays(text: str) -> None:
    assert DETOKENIZERS["ag-news"](text) == text
