r"""Detokenizers: the text that a benchmark was made from, as far as it can be read off its tokens.

Some benchmarks are published as words and marks with spaces between them ("did n't , @-@ <unk>"). A tokenizer that was
trained on ordinary text needs more tokens for such text, and gives another perplexity. A detokenizer is a function
from one document to its text:

    name                undoes
    ptb                 Penn Treebank: n't and 's apart, N for a number, <unk>, "\/"
    wikitext            WikiText: " @-@ ", marks and brackets apart, "= =" of headings
    lm1b                One Billion Words: marks, quotes and brackets apart, "http : / / "
    lambada             LAMBADA: typographic quotes; the text begins with a line feed
    scientific-papers   arXiv and PubMed articles: wikitext, then lm1b
    ag-news             AG News: entities of HTML, also without their "&"; "\" for the end of a line; "\$"

The first five give the same text, character by character, as the code of the MDLM and Duo papers (its dataloader), so
that perplexities compare; where a rule of that code has no use or leaves something undone, this one does too. That code
has no detokenizer for AG News: leave ``ag-news`` out to compare with the papers.

What must hold: a detokenizer is a pure function of one document. ``_lambada`` changes nothing a second time, ``ptb``
nothing in the sentences of the Penn Treebank. The others may: a rule can make a place for an earlier rule (wikitext and
lm1b read "a , , b" as "a, , b", then as "a,, b"; ag-news reads "&amp;lt;" as "&lt;", then as "<"). So a detokenizer is
applied once, to text that was not detokenized.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import partial

Detokenizer = Callable[[str], str]
Rule = tuple[str | re.Pattern[str], str]


def _rewrite(rules: tuple[Rule, ...], text: str) -> str:
    """The text after all rules, in their order; a rule replaces every place that it finds, from left to right.

    >>> _rewrite(((" ,", ","), (re.compile(r"\\( (.) \\)"), r"(\\1)")), "a , ( b )")
    'a, (b)'
    """
    for found, replacement in rules:
        text = text.replace(found, replacement) if isinstance(found, str) else found.sub(replacement, text)
    return text


def _before_space(marks: str) -> tuple[Rule, ...]:
    """Marks between two spaces lose the first one: "a , b" becomes "a, b"."""
    return tuple((f" {mark} ", f"{mark} ") for mark in marks)


def _inside(pattern: str, *pairs: str) -> tuple[Rule, ...]:
    """What the pattern finds inside brackets, or two equal quotes, is replaced by its group; <> stands for the pair."""
    return tuple(
        (re.compile(pattern.replace("<", f"\\{pair[0]}").replace(">", f"\\{pair[1]}")), rf"{pair[0]}\1{pair[1]}")
        for pair in pairs
    )


PTB: tuple[Rule, ...] = (
    (" 's", "'s"),
    ("s ' ", "s' "),
    (" n't", "n't"),
    (" \n ", "\n"),
    ("\\/", "/"),
    (re.compile(r" N(?= )"), " 1"),  # numbers in a row share their spaces
    ("$ 1", "$1"),
    ("# 1", "#1"),
    ("<unk>", "?"),
)

WIKITEXT: tuple[Rule, ...] = (
    ("s '", "s'"),
    (re.compile(r"/' [0-9]/"), "/'[0-9]/"),  # a slip of the original: the replacement is these very characters
    *((f" @{mark}@ ", mark) for mark in "-,."),
    *_before_space(":;.!?,"),
    *_inside(r"<\s*([^>]*?)\s*>", "()", "[]", "{}", '""', "''"),  # white space directly inside is removed
    *(("= " * (number - 1) + "=", "=" * number) for number in (4, 3, 2)),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)

LM1B: tuple[Rule, ...] = (
    ("http : / / ", "http://"),
    ("https : / / ", "https://"),
    (re.compile(r" '(\w+)"), r"'\1"),
    (re.compile(r" (\w+) \. "), r" \1. "),
    (re.compile(r" (\w+) \.$"), r" \1."),
    (" ? ", "? "),
    (re.compile(r" \?$"), "?"),
    (" ! ", "! "),
    (re.compile(r" !$"), "!"),
    *_before_space(",:;"),
    (" / ", "/"),
    *_inside("< ([^<>]+) >", '""', "''", "()", "[]"),  # innermost ones lose both spaces, if both are there
    ("$ ", "$"),
    ("£ ", "£"),
)

# In AG News the "&" of most entities became a space: "today #39;s", "Cable  amp; Wireless".
BARE_ENTITY = re.compile(r"(?:^| )(#[0-9]+|quot|amp|lt|gt|nbsp);")
ENTITY = re.compile(r"&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")


def _lambada(text: str) -> str:
    """Straight double quotes, no white space around the text, and a line feed before it.

    >>> _lambada(" “Yes,” she said")
    '\\n"Yes," she said'
    """
    return "\n" + _rewrite((("“", '"'), ("”", '"')), text).strip()


def _ag_news(text: str) -> str:
    r"""Entities become characters, a backslash a line feed, a backslash before a dollar nothing.

    The "&" of an entity may have become a space, which is then removed with it. An unknown entity stays.

    >>> _ag_news(r"Bush #39;s  quot;plan quot; costs\more than \$5 &lt;b&gt;")
    'Bush\'s "plan" costs\nmore than $5 <b>'
    """
    whole = ENTITY.sub(lambda found: html.unescape(found[0]), BARE_ENTITY.sub(r"&\1;", text))
    return whole.replace("\\$", "$").replace("\\", "\n")


DETOKENIZERS: dict[str, Detokenizer] = {
    "ptb": partial(_rewrite, PTB),
    "wikitext": partial(_rewrite, WIKITEXT),
    "lm1b": partial(_rewrite, LM1B),
    "lambada": _lambada,
    "scientific-papers": partial(_rewrite, WIKITEXT + LM1B),
    "ag-news": _ag_news,
}
