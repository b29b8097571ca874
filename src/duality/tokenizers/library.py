"""Tokenizers of the library `tokenizers`: byte pairs, word pieces, and any tokenizer.json, read strictly.

What must hold: the ids are those that the library gives a text, without special tokens around it, not cut and not
padded; special tokens inside a text are text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from duality.tokenizers.fast_pairs import WORDS, FastPairs, fast_pairs
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
    split_documents,
    utf8,
)

LONGEST_WORD = 256  # characters of a word that BPE is trained on
MOST_EXTRA = 1024

_Content = dict[str, Any]  # of a file


@dataclass(frozen=True)
class LibraryTokenizer(SavedTokenizer):
    """A tokenizer of the library; ``kind`` says which, and the definition has it under that name.

        bpe         byte-level pairs; the end of a document is id 0 if they were trained here, 50 256 for GPT-2
        wordpiece   word pieces as in BERT: the longest piece first, "##" before the others; "[SEP]" ends a document
        library     any tokenizer.json, with one of its tokens as the separator

    Word pieces do not give the text back exactly: control characters are removed, words are in lower case, without
    accents and one space apart; a word with an unknown character, or with more than 100 characters, is "[UNK]".

    Special tokens of a tokenizer.json are never put around a text, its truncation and padding are switched off. The
    special tokens inside a text are ordinary text; a model that reads one as a single piece nevertheless (Unigram,
    WordLevel) meets an error. Decoding loses what the normalizer of the file removes, and shows an id without a token
    as the replacement character.
    """

    definition: str = field(repr=False)  # of BPE about 60 000 characters, of a file up to tens of millions

    @cached_property
    def content(self) -> _Content:
        """The content of the definition."""
        found: _Content = json.loads(self.definition)
        return found

    @property
    def kind(self) -> str:
        """What kind of tokenizer it is."""
        return str(self.content["kind"])

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The tokenizer of the library, made from the definition."""
        made = tokenizers.Tokenizer.from_str(json.dumps(self.content[self.kind]))
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = True  # "<|endoftext|>" inside a text is text
        return made

    @cached_property
    def fast(self) -> FastPairs | None:
        """An encoder that gives the same ids sooner; making it takes about a second. None where there is none."""
        return fast_pairs(self.content["bpe"], self.library) if self.kind == "bpe" else None

    @property
    def cuttable(self) -> bool:
        """Whether a long text has the same ids if it is cut before white space."""
        return self.kind != "library"  # a tokenizer.json may treat the beginning of a text in its own way

    @cached_property
    def tokens(self) -> dict[int, str]:
        """The token of each id that has one."""
        return {index: token for token, index in self.library.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def vocab_size(self) -> int:
        """The largest id + 1; of BPE after training smaller than requested if the text is small."""
        return max(self.tokens) + 1

    @cached_property
    def separator(self) -> int:
        """The end of a document."""
        piece = self.content.get("separator", "[SEP]" if self.kind == "wordpiece" else END_OF_DOCUMENT)
        found = self.library.token_to_id(piece)
        if found is None:
            raise ValueError(f"the tokenizer has no piece {piece!r} to end a document with; use one that has")
        return int(found)

    @cached_property
    def special(self) -> tuple[int, ...]:
        """The ids of special tokens that are neither the separator nor what unknown characters become, in order."""
        content = self.content[self.kind]
        unknown = {content["model"].get("unk_id"), self.library.token_to_id(content["model"].get("unk_token") or "")}
        marked = {each["id"] for each in content.get("added_tokens") or () if each.get("special")}
        return tuple(sorted(marked - unknown - {self.separator}))

    @cached_property
    def gaps(self) -> tuple[int, ...]:
        """The ids below K without a token, in order."""
        return tuple(index for index in range(self.vocab_size) if index not in self.tokens)

    def encode(self, text: str) -> Ids:
        """The ids that the library gives."""
        utf8(text)  # raises an error for half a surrogate pair
        # The batch call does not compute the offsets into the text, which take half of the time.
        (encoding,) = self.library.encode_batch_fast([text], add_special_tokens=False)
        return self.check_text_ids(np.array(encoding.ids, dtype=np.int64))

    def check_text_ids(self, ids: Ids) -> Ids:
        """The same ids of a text; the separator or a special token of a tokenizer.json among them is an error."""
        if self.cuttable:
            return ids  # no text has them
        wrong = np.flatnonzero(np.isin(ids, [self.separator, *self.special]))
        if wrong.size:
            token = self.tokens[int(ids[wrong[0]])]
            raise ValueError(
                f"the text holds {token!r}, which this tokenizer reads as its special token: remove these characters, "
                "or use a tokenizer that reads them as text, such as BPE or Bytes"
            )
        return ids

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of each document, as the library decodes it; bytes that are no UTF-8 are shown as U+FFFD."""
        return END_OF_DOCUMENT.join(self._decode_document(part) for part in split_documents(self, ids))

    def _decode_document(self, row: Ids) -> str:
        """The text of ids without a separator."""
        parts = [row]
        if self.gaps:
            parts = np.split(row, np.flatnonzero(np.isin(row, self.gaps)))
            parts = [part[~np.isin(part, self.gaps)] for part in parts]
        return "\ufffd".join(self.library.decode(part.tolist(), skip_special_tokens=False) for part in parts)


def _as_byte_pairs(made: tokenizers.Tokenizer) -> LibraryTokenizer:
    """The tokenizer of a byte-level BPE of the library, whose words are those of GPT-2."""
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return LibraryTokenizer(canonical({"kind": "bpe", "bpe": json.loads(made.to_str())}))


def train_byte_pairs(texts: Iterable[str], vocab_size: int) -> LibraryTokenizer:
    """Byte-level BPE with the most frequent pairs of the texts."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = _short_words()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_DOCUMENT],  # comes first and gets id 0
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),  # so that no text has an unknown piece
        show_progress=False,
    )
    model.train_from_iterator(iter(texts), trainer=trainer)
    return _as_byte_pairs(model)


def _short_words(longest: int = LONGEST_WORD) -> tokenizers.pre_tokenizers.PreTokenizer:
    """The words of GPT-2 as the library's ByteLevel finds them, those of more than ``longest`` characters in parts."""
    words = tokenizers.Regex(WORDS.replace("+", f"{{1,{longest}}}"))
    to_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Split(words, "isolated"), to_bytes])


def byte_pairs(vocabulary: dict[str, int], merges: list[str]) -> LibraryTokenizer:
    """Byte-level BPE with given ids, including the end of a document, and given merges ("Ġ t")."""
    pairs = [(first, second) for first, _, second in (line.partition(" ") for line in merges)]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    made.add_special_tokens([END_OF_DOCUMENT])  # it is in the vocabulary and keeps its id
    return _as_byte_pairs(made)


def word_pieces(pieces: list[str]) -> LibraryTokenizer:
    """WordPiece as in BERT, in lower case, with given pieces in the order of their ids."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece(prefix="##", cleanup=True)
    return LibraryTokenizer(canonical({"kind": "wordpiece", "wordpiece": json.loads(made.to_str())}))


def with_extra_tokens(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """The tokenizer with ``count`` further ids after its own, which no text has: "[PAD]", "[EXTRA 1]", ...

    They are the further states of a model that others have trained. The released Duo has 50 258 states: the 50 257 ids
    of GPT-2 and "[PAD]", which no text has and which is a state of the uniform noise like any other. A model with that
    state is another model than one without it, so the state is kept. Encoding never gives an extra id, and decoding
    shows its name; the other ids are as they were.
    """
    if not count:
        return tokenizer
    if not isinstance(tokenizer, LibraryTokenizer) or tokenizer.kind == "wordpiece" or count > MOST_EXTRA:
        raise ValueError(
            f"the model has {count} states more than the tokenizer has ids ({tokenizer.vocab_size}): only byte pairs "
            f"and a tokenizer.json can have more ids than their text needs, and at most {MOST_EXTRA}; give the "
            "tokenizer that the model was trained with"
        )
    made = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.content[tokenizer.kind]))
    taken = made.get_vocab()
    names = ("[PAD]", *(f"[EXTRA {number}]" for number in range(1, len(taken) + count + 1)))
    made.add_special_tokens([name for name in names if name not in taken][:count])
    extended = LibraryTokenizer(canonical({**tokenizer.content, tokenizer.kind: json.loads(made.to_str())}))
    if extended.vocab_size != tokenizer.vocab_size + count:
        raise ValueError(
            f"the tokenizer has ids without a token, so that {count} further ids would not come after its "
            f"{tokenizer.vocab_size}: give the tokenizer that the model was trained with"
        )
    return extended


def _library_tokenizer(found: _Content) -> LibraryTokenizer:
    """The tokenizer of the library that a file defines."""
    names = ("kind", found["kind"], *(("separator",) if found["kind"] == "library" else ()))
    return LibraryTokenizer(canonical({name: found[name] for name in names}))


_KINDS: dict[str, Callable[[_Content], Tokenizer]] = {
    "bytes": lambda found: ByteTokenizer(),
    "characters": lambda found: CharTokenizer(found["alphabet"]),
    "bpe": _library_tokenizer,
    "wordpiece": _library_tokenizer,
    "numbers": lambda found: NumberTokenizer(found["num_values"]),
    "text8": lambda found: Text8Tokenizer(),
    "smiles": lambda found: SmilesTokenizer(tuple(found["tokens"])),
    "nucleotides": lambda found: NucleotideTokenizer(),
    "library": _library_tokenizer,
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
