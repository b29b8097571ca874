"""Packing: a token store as rows of one length.

The store is one row of N ids; sequence i is its window [i*L, (i+1)*L). The windows do not overlap and miss
nothing: there are ceil(N / L) of them, and the last one, shorter, is filled up with id 0 that the mask marks
as no token.

    ids   (B, L) int64      the rows asked for
    mask  (B, L) bool       True on real tokens, False on filling

What must hold: over all rows, the tokens under the mask are the store's tokens, each once and in order,
whatever the shards; no id lies outside the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from duality.data.store import TokenStore


@dataclass(frozen=True)
class Sequences:
    """The windows of `length` tokens over a store."""

    store: TokenStore
    length: int

    def __post_init__(self) -> None:
        """Refuse a length that is no length."""
        if self.length < 1:
            raise ValueError(f"the length of a sequence must be at least 1; got {self.length}")

    def __len__(self) -> int:
        """The number of sequences, the last, shorter one included."""
        return (len(self.store) + self.length - 1) // self.length

    @property
    def num_tokens(self) -> int:
        """The real tokens in all sequences together, which are all tokens of the store."""
        return len(self.store)

    def rows(self, indices: npt.ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids and the mask of some sequences."""
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise ValueError(f"sequences are numbered 0 to {len(self) - 1}; got {chosen.min()} to {chosen.max()}")
        ids = np.zeros((len(chosen), self.length), dtype=np.int64)
        for row, index in zip(ids, chosen.tolist(), strict=True):
            window = self.store[index * self.length : (index + 1) * self.length]
            row[: len(window)] = window
        if ids.size and ids.max() >= self.store.vocab_size:
            raise ValueError(
                f"id {ids.max()} in {self.store.folder} is outside the vocabulary of {self.store.vocab_size} "
                "ids: the store is damaged; delete the folder and make it again"
            )
        real = len(self.store) - chosen[:, None] * self.length
        mask = np.arange(self.length)[None, :] < real
        return torch.from_numpy(ids), torch.from_numpy(mask)
