"""Frames of a generation over four letters."""

from __future__ import annotations

import torch

from duality.samplers.generate import Frame
from duality.tokenizers.tokenizer import CharTokenizer

LETTERS = CharTokenizer("\nabcd")  # ids 0 to 4, the separator 5
NO_TEXT = 6


def frame(step: int, *rows: list[int], steps: int = 9, alpha: float = 0.5, first: int = 0) -> Frame:
    """A step of a batch."""
    return Frame(step, steps, alpha, torch.tensor(rows, dtype=torch.int64).reshape(len(rows), -1), first)
