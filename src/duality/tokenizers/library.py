"""Tokenizers of the library `tokenizers`: byte pairs, word pieces, and any tokenizer.json, read strictly.

What must hold: the ids are those that the library gives a text, without special tokens around it, not cut and not
padded; special tokens inside a text are text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tokenizers

from duality.tokenizers.fast_pairs import FastPairs, fast_pairs
from duality.tokenizers.symbols import NucleotideTokenizer, SmilesTokenizer, Text8Tokenizer
from duality.tokenizers.tokenizer import (
    END_OF_DOCUMENT,
    FILE,
    ByteTokenizer,
    CharTokenizer,
    Ids,
    NumberTokenizer,
    SavedTokenizer,
    Tokenizer,
    canonical,
    check_ids,
    split_documents,
    utf8,
)

MOST_EXTRA = 1024

_Content = dict[str, Any]  # of a file


@dataclass(frozen=True)
class _OfLibrary(SavedTokenizer):
    """A tokenizer of the library, in the definition under the name of its ``kind``."""

    definition: str = field(repr=False)  # of BPE about 60 000 characters, of a file up to tens of millions
    kind: ClassVar[str]
    ending: ClassVar[str] = END_OF_DOCUMENT

    @cached_property
    def content(self) -> _Content:
        """The content of the definition."""
        found: _Content = json.loads(self.definition)
        return found

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The tokenizer of the library, made from the definition."""
        made = tokenizers.Tokenizer.from_str(json.dumps(self.content[self.kind]))
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = True  # "<|endoftext|>" inside a text is text
        return made

    @cached_property
    def vocab_size(self) -> int:
        """The number of ids; of BPE after training, which is smaller than requested if the text is small."""
        return int(self.library.get_vocab_size())

    @cached_property
    def separator(self) -> int:
        """The end of a document."""
        piece = self.content.get("separator", self.ending)
        found = self.library.token_to_id(piece)
        if found is None:
            raise ValueError(f"the tokenizer has no piece {piece!r} to end a document with; use one that has")
        return int(found)

    def encode(self, text: str) -> Ids:
        """The ids that the library gives."""
        utf8(text)  # raises an error for half a surrogate pair
        # The batch call does not compute the offsets into the text, which take half of the time.
        (encoding,) = self.library.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int64)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of each document, as the library decodes it."""
        return END_OF_DOCUMENT.join(self._decode_document(part) for part in split_documents(self, ids))

    def _decode_document(self, row: Ids) -> str:
        """The text of ids as the library decodes them."""
        return str(self.library.decode(row.tolist(), skip_special_tokens=False))


@dataclass(frozen=True)
class BPETokenizer(_OfLibrary):
    """Byte-level pair encoding by the library `tokenizers`.

    The end of a document is id 0 if the pairs were trained by ``BPE``, 50 256 for GPT-2.
    """

    kind: ClassVar[str] = "bpe"

    @cached_property
    def fast(self) -> FastPairs | None:
        """An encoder that gives the same ids sooner; making it takes about a second. None where there is none."""
        return fast_pairs(self.content["bpe"], self.library)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text; bytes that are not UTF-8 become the replacement character."""
        return self._decode_document(check_ids(ids, self.vocab_size))


@dataclass(frozen=True)
class WordPieceTokenizer(_OfLibrary):
    """Word pieces by the library `tokenizers`, as in BERT: the longest piece first, "##" before the others.

    Decoding does not give the text back exactly. Control characters are removed, words are in lower case, without
    accents and one space apart; a word with an unknown character, or with more than 100 characters, is "[UNK]".
    """

    kind: ClassVar[str] = "wordpiece"
    ending: ClassVar[str] = "[SEP]"  # no text contains it, because "[" is a separate word


@dataclass(frozen=True)
class LibraryTokenizer(_OfLibrary):
    """A tokenizer.json of the library `tokenizers`, with one of its tokens as the separator.

    Special tokens of the file are never put around a text, its truncation and padding are switched off. The special
    tokens inside a text are ordinary text; a model that reads one as a single piece nevertheless (Unigram, WordLevel)
    meets an error. Decoding loses what the normalizer of the file removes, and shows an id without a token as the
    replacement character.
    """

    kind: ClassVar[str] = "library"

    @cached_property
    def tokens(self) -> dict[int, str]:
        """The token of each id that has one."""
        return {index: token for token, index in self.library.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def vocab_size(self) -> int:
        """The largest id + 1."""
        return max(self.tokens) + 1

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
        return self.checked(super().encode(text))

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

    def _decode_document(self, row: Ids) -> str:
        """The text of ids without a separator."""
        if not self.gaps:
            return super()._decode_document(row)
        missing = np.isin(row, self.gaps)
        parts = [part[~np.isin(part, self.gaps)] for part in np.split(row, np.flatnonzero(missing))]
        return "\ufffd".join(super(LibraryTokenizer, self)._decode_document(part) for part in parts)


def make_byte_pairs(made: tokenizers.Tokenizer) -> BPETokenizer:
    """The tokenizer of a byte-level BPE of the library, whose words are those of GPT-2."""
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return BPETokenizer(canonical({"kind": "bpe", "bpe": json.loads(made.to_str())}))


def byte_pairs(vocabulary: dict[str, int], merges: list[str]) -> BPETokenizer:
    """Byte-level BPE with given ids, including the end of a document, and given merges ("Ġ t")."""
    pairs = [(first, second) for first, _, second in (line.partition(" ") for line in merges)]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    made.add_special_tokens([END_OF_DOCUMENT])  # it is in the vocabulary and keeps its id
    return make_byte_pairs(made)


def word_pieces(pieces: list[str]) -> WordPieceTokenizer:
    """WordPiece as in BERT, in lower case, with given pieces in the order of their ids."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece(prefix="##", cleanup=True)
    return WordPieceTokenizer(canonical({"kind": "wordpiece", "wordpiece": json.loads(made.to_str())}))


def with_extra_tokens(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """The tokenizer with ``count`` further ids after its own, which no text has: "[PAD]", "[EXTRA 1]", ...

    They are the further states of a model that others have trained. The released Duo has 50 258 states: the 50 257 ids
    of GPT-2 and "[PAD]", which no text has and which is a state of the uniform noise like any other. A model with that
    state is another model than one without it, so the state is kept. Encoding never gives an extra id, and decoding
    shows its name; the other ids are as they were.
    """
    if not count:
        return tokenizer
    if not isinstance(tokenizer, (BPETokenizer, LibraryTokenizer)) or count > MOST_EXTRA:
        raise ValueError(
            f"the model has {count} states more than the tokenizer has ids ({tokenizer.vocab_size}): only byte pairs "
            f"and a tokenizer.json can have more ids than their text needs, and at most {MOST_EXTRA}; give the "
            "tokenizer that the model was trained with"
        )
    made = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.content[tokenizer.kind]))
    made.add_special_tokens(list(_extra_names(made.get_vocab(), count)))
    extended = type(tokenizer)(canonical({**tokenizer.content, tokenizer.kind: json.loads(made.to_str())}))
    if extended.vocab_size != tokenizer.vocab_size + count:
        raise ValueError(
            f"the tokenizer has ids without a token, so that {count} further ids would not come after its "
            f"{tokenizer.vocab_size}: give the tokenizer that the model was trained with"
        )
    return extended


def _extra_names(taken: dict[str, int], count: int) -> Sequence[str]:
    """Names for ``count`` ids that the vocabulary does not have.

    >>> _extra_names({"[EXTRA 1]": 7}, 3)
    ['[PAD]', '[EXTRA 2]', '[EXTRA 3]']
    """
    names = ["[PAD]", *(f"[EXTRA {number}]" for number in range(1, len(taken) + count + 1))]
    return [name for name in names if name not in taken][:count]


_KINDS: dict[str, Callable[[_Content], Tokenizer]] = {
    "bytes": lambda found: ByteTokenizer(),
    "characters": lambda found: CharTokenizer(found["alphabet"]),
    "bpe": lambda found: BPETokenizer(canonical({"kind": "bpe", "bpe": found["bpe"]})),
    "wordpiece": lambda found: WordPieceTokenizer(canonical({"kind": "wordpiece", "wordpiece": found["wordpiece"]})),
    "numbers": lambda found: NumberTokenizer(found["num_values"]),
    "text8": lambda found: Text8Tokenizer(),
    "smiles": lambda found: SmilesTokenizer(tuple(found["tokens"])),
    "nucleotides": lambda found: NucleotideTokenizer(),
    "library": lambda found: LibraryTokenizer(
        canonical({"kind": "library", "library": found["library"], "separator": found["separator"]})
    ),
}


def load_tokenizer(folder: str | Path, name: str = FILE) -> Tokenizer:
    """The tokenizer saved in a folder, in the file ``name``."""
    path = Path(folder) / name
    if not path.is_file():
        raise ValueError(f"no tokenizer at {path}; give a folder that a tokenizer was saved in")
    try:
        definition = json.loads(path.read_text(encoding="utf-8"))
        kind = definition["kind"]
        if kind in _KINDS:
            return _KINDS[kind](definition)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); save the tokenizer again") from None
    raise ValueError(f"{path} has the unknown kind {kind!r}; known are {', '.join(_KINDS)}")
