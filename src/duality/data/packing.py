"""Packing: a token store as rows of one length.

    "wrap"       the store is one row of N ids; sequence i is its window [i*L, (i+1)*L), across documents
    "document"   each document is cut into such windows separately: a sequence never has two documents

    store   a a a a a # b b # c #      L = 4         # the separator, . padding
    wrap        a a a a | a # b b | # c # .
    document    a a a a | a # . . | b b # . | c # . .

The windows do not overlap and leave nothing out: n ids, of the store or of one document, give ceil(n / L) windows. If
the last one is shorter, padding completes it:

    "ignore"     id 0, which is not valid: it is neither corrupted nor predicted
    "model"      in place of . the separator, if packed by document: these tokens are valid, and a model that is trained
                 on them learns where a document ends. The last window of a wrapped store is padded as by "ignore".

    "light"      the same tokens, and a training step pays for a tenth of them. Paid in full they keep a small network
                 from learning the text for a long time: the direction of AdamW is then theirs (docs/results.md)

    ids     (B, L) int64    the requested rows
    valid   (B, L) bool     True on the tokens that a model is trained on: all but ignored padding
    real    (B, L) bool     True on the tokens of the store: all but padding of either kind
    paid    (B, L) bool     True on the tokens whose loss is learnt from, if these are not all valid ones
    labels  (B,) int64      of the documents, if the store has labels; only if each row has one document

What must hold: over all rows, the real tokens are the store's tokens, each once and in order, for every size of the
shards; no id lies outside the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from duality.data import Padding
from duality.data.store import TokenStore

Places = npt.NDArray[np.int64]
_LIGHT = 10  # one of so many tokens of light padding is paid for


@dataclass(frozen=True)
class Sequences:
    """The windows of ``length`` tokens over a store; ``separator`` is the tokenizer's, for padding that is modelled."""

    store: TokenStore
    length: int
    packing: Literal["wrap", "document"] = "wrap"
    padding: Padding = "ignore"
    separator: int | None = None

    def __post_init__(self) -> None:
        """Refuse a length below 1, an unknown packing or padding, and padding to model without a separator."""
        if self.length < 1:
            raise ValueError(f"the length of a sequence must be at least 1; got {self.length}")
        if self.packing not in ("wrap", "document"):
            raise ValueError(f"a packing is 'wrap' or 'document'; got {self.packing!r}")
        if self.padding not in get_args(Padding):
            raise ValueError(f"padding is 'model', 'light' or 'ignore'; got {self.padding!r}")
        if self.models_padding and (self.separator is None or not 0 <= self.separator < self.store.vocab_size):
            raise ValueError(
                f"padding={self.padding!r} needs the separator of the tokenizer, from 0 to "
                f"{self.store.vocab_size - 1}; got {self.separator}: give separator=tokenizer.separator, or, if the "
                "tokenizer has none, use padding='ignore' (data.padding=ignore)"
            )

    def __len__(self) -> int:
        """The number of sequences, including those with padding."""
        if self.packing == "document":
            return int(self.window_ends[-1])
        return -(-len(self.store) // self.length)

    @property
    def models_padding(self) -> bool:
        """Whether what follows the end of a document is separators that are valid tokens."""
        return self.packing == "document" and self.padding != "ignore"

    @property
    def num_padding(self) -> int:
        """The number of separators that follow the documents' own ones; 0 if padding is not modelled."""
        return len(self) * self.length - len(self.store) if self.models_padding else 0

    def spread(self, limit: int | None = None) -> Places:
        """The numbers of all sequences, or of ``limit`` of them, evenly spread."""
        count = len(self) if limit is None else min(limit, len(self))
        return np.arange(count, dtype=np.int64) * len(self) // count

    def padding_of(self, indices: npt.ArrayLike) -> torch.Tensor | None:
        """(B, L) bool: which tokens of some sequences are padding that is modelled; None if it is not."""
        return ~self.real(indices) if self.models_padding else None

    @cached_property
    def window_ends(self) -> Places:
        """For each document the number of windows up to and including its last one, if packed by document."""
        ends = self.store.document_ends
        lengths = np.diff(ends, prepend=0)
        if lengths.min() < 0 or ends[-1] != len(self.store):
            raise ValueError(
                f"the document ends in {self.store.folder} do not fit its {len(self.store)} tokens: "
                "the store is damaged; delete the folder and make it again"
            )
        return np.cumsum(-(-lengths // self.length))

    def rows(self, indices: npt.ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        """``ids`` and ``valid`` of some sequences."""
        starts, stops = self.windows(indices)
        filler = 0 if self.separator is None or not self.models_padding else self.separator
        ids = np.full((len(starts), self.length), filler, dtype=np.int64)
        for row, start, stop in zip(ids, starts.tolist(), stops.tolist(), strict=True):
            row[: stop - start] = self.store[start:stop]
        if ids.size and ids.max() >= self.store.vocab_size:
            raise ValueError(
                f"id {ids.max()} in {self.store.folder} is outside the vocabulary of {self.store.vocab_size} "
                "ids: the store is damaged; delete the folder and make it again"
            )
        valid = torch.ones(ids.shape, dtype=torch.bool) if self.models_padding else self.real(indices)
        return torch.from_numpy(ids), valid

    def real(self, indices: npt.ArrayLike) -> torch.Tensor:
        """(B, L) bool: which tokens of some sequences are tokens of the store."""
        starts, stops = self.windows(indices)
        return torch.from_numpy(np.arange(self.length)[None, :] < (stops - starts)[:, None])

    def paid(self, indices: npt.ArrayLike) -> torch.Tensor | None:
        """(B, L) bool: the tokens that a training step pays for; None if these are the valid ones.

        Of light padding it is every tenth token, others in each row.
        """
        if self.padding != "light" or not self.models_padding:
            return None
        places = np.asarray(indices)[:, None] + np.arange(self.length)[None, :]
        return self.real(indices) | torch.from_numpy(places % _LIGHT == 0)

    def labels(self, indices: npt.ArrayLike) -> torch.Tensor | None:
        """The labels of some sequences, (B,) int64; None if the store has none."""
        if self.store.labels is None:
            return None
        if self.packing == "wrap":
            raise ValueError(
                "a sequence packed by 'wrap' may lie across documents with several labels; "
                "use packing='document', or a store without labels"
            )
        documents = np.searchsorted(self.window_ends, self._check_indices(indices), side="right")
        labels = self.store.labels[documents].astype(np.int64)
        known = len(self.store.label_names)
        if labels.size and not 0 <= labels.min() <= labels.max() < known:
            raise ValueError(
                f"a label in {self.store.folder} is outside 0 to {known - 1}: the store is damaged; "
                "delete the folder and make it again"
            )
        return torch.from_numpy(labels)

    def _check_indices(self, indices: npt.ArrayLike) -> Places:
        """The numbers of sequences as one array; a number that does not exist is an error."""
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise ValueError(f"sequences are numbered 0 to {len(self) - 1}; got {chosen.min()} to {chosen.max()}")
        return chosen

    def windows(self, indices: npt.ArrayLike) -> tuple[Places, Places]:
        """Where in the store some sequences start and stop."""
        chosen = self._check_indices(indices)
        if self.packing == "wrap":
            starts, ends = chosen * self.length, np.full(len(chosen), len(self.store))
        else:
            documents = np.searchsorted(self.window_ends, chosen, side="right")
            # where the document before each one ends, in windows and in tokens; 0 for the first document
            tokens, windows = self.store.document_ends, self.window_ends
            first, start = (np.where(documents > 0, ends[documents - 1], 0) for ends in (windows, tokens))
            starts, ends = start + (chosen - first) * self.length, tokens[documents]
        return starts, np.minimum(starts + self.length, ends)
