"""How token ids read as text, one by one: for the live view, for traces and for the surprisal of each token.

A token need not be whole characters: a byte of "é" is not text. ``Pieces.cells`` cuts a row of ids into the smallest
runs of tokens that can be read. What must hold: the texts of the cells, joined, are the decoded row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from duality.tokenizers.tokenizer import Tokenizer

MASK = "▒"  # the mask token, which is no text
PART = "\ufffd"  # what a part of a character reads as


@dataclass(frozen=True)
class Cell:
    """The tokens from place ``start`` to ``stop`` (exclusive), and how they read."""

    text: str
    start: int
    stop: int
    masked: bool

    def touches(self, places: Collection[int]) -> bool:
        """Whether one of its tokens is at one of these places."""
        return any(place in places for place in range(self.start, self.stop))


class Pieces:
    """How ids read; ``mask_id`` is the mask token, None for a model without one."""

    def __init__(self, tokenizer: Tokenizer, mask_id: int | None = None) -> None:
        self.mask_id = mask_id
        self._decode = lru_cache(1 << 16)(lambda ids: tokenizer.decode(list(ids)))

    def of(self, index: int) -> str:
        """The text of one id as it reads after a word, whatever its neighbours are."""
        if index == self.mask_id:
            return MASK
        alone = self._decode((index,))
        # Behind itself, a piece of a word has the space, or loses the "##", that it has behind others.
        return alone if PART in alone else self._decode((index, index)).removeprefix(alone)

    def cells(self, ids: Sequence[int]) -> list[Cell]:
        """The row as the smallest runs of tokens that can be read."""
        made: list[Cell] = []
        before: tuple[int, ...] = ()
        while (start := made[-1].stop if made else 0) < len(ids):
            stop = start + 1
            while stop < len(ids) and self._share_a_character(tuple(ids[start:stop]), ids[stop]):
                stop += 1
            run = tuple(ids[start:stop])
            if self.mask_id not in before + run:  # how it reads after the run before it
                text = self._decode(before + run).removeprefix(self._decode(before))
            else:
                text = self.of(run[0]) if len(run) == 1 else self._decode(run)
            made.append(Cell(text, start, stop, self.mask_id in run))
            before = run
        return made

    def text(self, ids: Sequence[int]) -> str:
        """The whole row."""
        return "".join(cell.text for cell in self.cells(ids))

    def per_token(self, ids: Sequence[int]) -> list[str]:
        """A text for each token: what is read when it is added; "" for a token that ends inside a character."""
        texts = [""] * len(ids)
        for cell in self.cells(ids):
            texts[cell.stop - 1] = cell.text
        return texts

    def _share_a_character(self, run: tuple[int, ...], following: int) -> bool:
        """Whether the last character of a run goes on in the next token."""
        if self.mask_id in (*run, following):
            return False
        left = self._decode(run)
        return left.endswith(PART) and self._decode((*run, following)) != left + self._decode((following,))
