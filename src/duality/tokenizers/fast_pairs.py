"""Byte pairs encoded by `tiktoken`, where it is installed: the same ids as the library `tokenizers` gives, sooner.

`tokenizers` merges a pair of pieces if it is in a list of merges, the earliest in the list first. `tiktoken` merges any
two neighbours whose joined bytes are a piece, the piece with the smallest id first. Both do the same if

    1.  the merges make their pieces in the order of the ids, each piece once, from the 256 bytes;
    2.  the list of merges turns the bytes of every piece into this piece;
    3.  both find the same words, which pieces never cross.

Why 2 is enough: as long as no merge crosses the ends of a part of a word, the merges inside it are those of the part
alone. If two neighbours join to a piece, they are what the piece's own bytes were before their last merge: the pair is
in the list. 1 and 2 are checked when this is made. 3 is checked for every character of Unicode: whether both take it
for a letter, a number or white space, which the rule of words asks and nothing else.

What must hold: the ids are those of the library, or the text is left to the library (None).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import tokenizers

from duality.tokenizers.tokenizer import END_OF_DOCUMENT, Ids, code_points

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of GPT-2
CLASSES = (r"\p{L}", r"\p{N}", r"\s")

Content = dict[str, Any]  # of a tokenizer.json


@dataclass(frozen=True)
class FastPairs:
    """The function of `tiktoken` that encodes a text, and the characters that it classes otherwise than the library."""

    encode_text: Callable[[str], list[int]]
    unlike: frozenset[str]

    @classmethod
    def of(cls, content: Content, library: tokenizers.Tokenizer) -> FastPairs | None:
        """The encoder for the content of a file of byte pairs; None if `tiktoken` is absent or may give other ids."""
        try:
            tiktoken = import_module("tiktoken")
        except ImportError:
            return None
        if (ranks := _ranks_of(content, library)) is None:
            return None
        made = tiktoken.Encoding("pairs", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})
        return cls(made.encode_ordinary, frozenset[str]().union(*(find_unlike(kind, kind) for kind in CLASSES)))

    def encode(self, texts: Sequence[str]) -> list[Ids | None]:
        """The ids of each text, in as many threads as the library would take.

        None for a text that is left to it: one with a character that is unlike, or in which the rule of words takes
        too many steps.
        """

        def encode_one(text: str) -> Ids | None:
            if not self.unlike.isdisjoint(text):
                return None
            try:
                return np.array(self.encode_text(text), dtype=np.int64)
            except (KeyboardInterrupt, SystemExit, MemoryError):
                raise
            except BaseException:  # of the engine for regular expressions: very long white space
                return None

        with ThreadPoolExecutor(_num_threads()) as pool:
            return list(pool.map(encode_one, texts))


@cache
def find_unlike(theirs: str, ours: str) -> frozenset[str]:
    """The characters that only one of two classes has: ``theirs`` as `tiktoken` reads it, ``ours`` as the library."""
    points = np.delete(np.arange(0x110000), slice(0xD800, 0xE000))  # without halves of surrogate pairs
    every = points.astype("<u4").tobytes().decode("utf-32-le")
    single = {bytes([byte]): byte for byte in range(256)}
    keep = import_module("tiktoken").Encoding("", pat_str=f"{theirs}+", mergeable_ranks=single, special_tokens={})
    remove = tokenizers.normalizers.Replace(tokenizers.Regex(f"(?:{ours})+"), "")
    found = code_points(bytes(keep.encode_ordinary(every)).decode("utf-8"))
    others = code_points(remove.normalize_str(every))
    return frozenset(map(chr, np.setxor1d(found, np.setdiff1d(points, others, assume_unique=True))))


def _ranks_of(content: Content, library: tokenizers.Tokenizer) -> dict[bytes, int] | None:
    """The id of the bytes of each piece, if they are all that decides about the ids of a text; else None."""
    model, words = content["model"], {"use_regex": True, **(content["pre_tokenizer"] or {})}
    affixes = ("continuing_subword_prefix", "end_of_word_suffix")
    options = ("dropout", "unk_token", "byte_fallback", "ignore_merges", *affixes)
    if words.get("type") != "ByteLevel" or words["add_prefix_space"] or not words["use_regex"]:
        return None
    found_in_text = [each for each in content["added_tokens"] if not each["special"]]
    if content["normalizer"] or found_in_text or any(map(model.get, options)):
        return None
    characters = byte_characters()
    pieces = {piece: index for piece, index in model["vocab"].items() if piece != END_OF_DOCUMENT}
    made = ["".join(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
    ids = [-1, *(pieces.get(piece, -1) for piece in made)]
    if set(pieces) != {*characters, *made} or any(first >= second for first, second in zip(ids, ids[1:])):
        return None
    merge = library.model.tokenize
    if any([token.id for token in merge(piece)] != [index] for piece, index in pieces.items()):
        return None
    return {bytes(characters[each] for each in piece): index for piece, index in pieces.items()}


def byte_characters() -> dict[str, int]:
    """The byte that each character of a piece stands for: visible Latin characters themselves, others in order.

    >>> byte_characters()["A"], byte_characters()["Ġ"], len(byte_characters())
    (65, 32, 256)
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def _num_threads() -> int:
    """The number of threads that the library takes."""
    if os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("false", "off", "no", "f", "n", "0"):
        return 1
    chosen = os.environ.get("RAYON_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) > 0 else os.cpu_count() or 1
