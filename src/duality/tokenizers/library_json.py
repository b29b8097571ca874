"""A tokenizer.json of the library `tokenizers`, whatever its kind, read strictly.

What must hold: the ids are those that the library gives a text, without special tokens around it, not cut and not
padded; no text has the separator or another special token; K is the largest id + 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from duality.tokenizers.base import END_OF_DOCUMENT, Ids, checked_ids, sha256, split_at, utf8, write_definition


@dataclass(frozen=True)
class LibraryTokenizer:
    """A tokenizer.json of the library `tokenizers`, with one of its tokens as the separator.

    Special tokens of the file are never put around a text, its truncation and padding are switched off. The special
    tokens inside a text are ordinary text; a model that reads one as a single piece nevertheless (Unigram, WordLevel)
    meets an error. Decoding loses what the normalizer of the file removes, and shows an id without a token as the
    replacement character.
    """

    definition: str = field(repr=False)  # up to tens of millions of characters

    @cached_property
    def content(self) -> dict[str, Any]:
        """The content of the file of the library, and the separator."""
        found: dict[str, Any] = json.loads(self.definition)
        return found

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The tokenizer of the library, made from the definition."""
        made = tokenizers.Tokenizer.from_str(json.dumps(self.content["library"]))
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = True
        return made

    @cached_property
    def tokens(self) -> dict[int, str]:
        """The token of each id that has one."""
        return {index: token for token, index in self.library.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def vocab_size(self) -> int:
        """The largest id + 1."""
        return max(self.tokens) + 1

    @cached_property
    def separator(self) -> int:
        """The end of a document."""
        return piece_id(self.library, self.content["separator"])

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer's file."""
        return sha256(self.definition)

    @cached_property
    def special(self) -> tuple[int, ...]:
        """The ids of special tokens that are neither the separator nor what unknown characters become, in order."""
        model = self.content["library"]["model"]
        unknown = {model.get("unk_id"), self.library.token_to_id(model.get("unk_token") or "")}
        marked = {each["id"] for each in self.content["library"].get("added_tokens") or () if each.get("special")}
        return tuple(sorted(marked - unknown - {self.separator}))

    @cached_property
    def gaps(self) -> tuple[int, ...]:
        """The ids below K without a token, in order."""
        return tuple(index for index in range(self.vocab_size) if index not in self.tokens)

    def encode(self, text: str) -> Ids:
        """The ids that the library gives."""
        return self.checked(library_ids(self.library, text))

    def checked(self, ids: Ids) -> Ids:
        """The same ids of a text; the separator or a special token among them is an error."""
        wrong = np.flatnonzero(np.isin(ids, [self.separator, *self.special]))
        if wrong.size:
            token = self.tokens[int(ids[wrong[0]])]
            raise ValueError(
                f"the text holds {token!r}, which this tokenizer reads as its special token: remove these characters, "
                "or use a tokenizer that reads them as text, such as BPE or Bytes"
            )
        return ids

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of each document, as the library decodes it."""
        documents = split_at(self.separator, checked_ids(ids, self.vocab_size))
        return END_OF_DOCUMENT.join(self.decode_document(part) for part in documents)

    def decode_document(self, row: Ids) -> str:
        """The text of ids without a separator."""
        if not self.gaps:
            return str(self.library.decode(row.tolist(), skip_special_tokens=False))
        missing = np.isin(row, self.gaps)
        parts = [part[~np.isin(part, self.gaps)] for part in np.split(row, np.flatnonzero(missing))]
        return "\ufffd".join(str(self.library.decode(part.tolist(), skip_special_tokens=False)) for part in parts)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into the folder."""
        write_definition(Path(folder), self.definition)


def library_ids(library: tokenizers.Tokenizer, text: str) -> Ids:
    """The ids that the library gives a text, without special tokens around it."""
    utf8(text)  # raises an error for half a surrogate pair
    # The batch call does not compute the offsets into the text, which take half of the time.
    (encoding,) = library.encode_batch_fast([text], add_special_tokens=False)
    return np.array(encoding.ids, dtype=np.int64)


def piece_id(library: tokenizers.Tokenizer, piece: str) -> int:
    """The id of a piece that the vocabulary must have."""
    found = library.token_to_id(piece)
    if found is None:
        raise ValueError(f"the tokenizer has no piece {piece!r} to end a document with; use one that has")
    return int(found)
