"""Our tokenizers as files that `transformers` reads: tokenizer.json and tokenizer_config.json.

    BPE, GPT-2, word pieces, a tokenizer.json   the library's own definition, without what it puts around a text
    bytes                                       byte-level pairs without any pair
    characters, text8, nucleotides, SMILES      words of one symbol, found by a pattern
    numbers                                     words between white space, up to ``MOST_WORDS`` of them

``AutoTokenizer.from_pretrained(folder)`` gives the ids of ours for every text that ours accepts. A text that ours
refuses, because of an unknown symbol, is an error there too. Special tokens inside a text are text
(``split_special_tokens``); ``AutoTokenizer.from_pretrained(folder, split_special_tokens=False)`` reads them as tokens.

A model may have one state more than tokens: the mask token, or the one that begins a sequence. It is added as a special
token, so that ``mask_token_id`` or ``bos_token_id`` of the tokenizer is that state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers

from duality.tokenizers.fast_pairs import byte_characters
from duality.tokenizers.library import LibraryTokenizer
from duality.tokenizers.tokenizer import (
    END_OF_DOCUMENT,
    ByteTokenizer,
    NumberTokenizer,
    SymbolTokenizer,
    Tokenizer,
)

MOST_WORDS = 1_000_000
ADDED = {"mask_token": "<|mask|>", "bos_token": "<|begin|>"}

ExtraState = Literal["mask_token", "bos_token"] | None


def transformers_files(tokenizer: Tokenizer, extra: ExtraState, length: int) -> dict[str, str] | None:
    """The two files by name; None for a tokenizer that `transformers` cannot have.

    ``extra`` says what the state behind the last token is, and ``length`` how many tokens the model reads.
    """
    made = _library_form(tokenizer)
    if made is None:
        return None
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        "model_max_length": length,
    }
    if tokenizer.separator is not None:
        ending = made.id_to_token(tokenizer.separator)
        config |= {"eos_token": ending, "pad_token": ending}
    if extra is not None and ADDED[extra] not in made.get_vocab(with_added_tokens=True):
        made.add_special_tokens([ADDED[extra]])
        if made.token_to_id(ADDED[extra]) != tokenizer.vocab_size:
            return None  # ids without a token: the library gives the new one another id than the model
        config[extra] = ADDED[extra]
    return {"tokenizer.json": made.to_str(), "tokenizer_config.json": json.dumps(config, indent=1)}


def _library_form(tokenizer: Tokenizer) -> library.Tokenizer | None:
    """The same tokenizer as one of the library; None if there is no such."""
    replace = normalizers.Replace
    if isinstance(tokenizer, LibraryTokenizer):
        content = json.loads(tokenizer.library.to_str())
        # what is put around a text, cut off or filled up is no part of our ids
        content |= {"post_processor": None, "truncation": None, "padding": None}
        return library.Tokenizer.from_str(json.dumps(content))
    if isinstance(tokenizer, ByteTokenizer):
        made = library.Tokenizer(models.BPE(byte_characters(), []))  # the character that it writes for a byte
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    elif isinstance(tokenizer, SymbolTokenizer):
        made = _words(tokenizer.symbols)
        # what the pattern does not find is unknown
        made.pre_tokenizer = pre_tokenizers.Split(library.Regex(tokenizer.pattern), "isolated")
        made.decoder = decoders.Fuse()
        if tokenizer.aliases:
            groups = [replace(library.Regex(f"[{group}]"), symbol) for symbol, group in tokenizer.aliases.items()]
            made.normalizer = normalizers.Sequence(groups)
    elif isinstance(tokenizer, NumberTokenizer) and tokenizer.num_values <= MOST_WORDS:
        made = _words([str(value) for value in range(tokenizer.num_values)])
        made.normalizer = replace(library.Regex(r"(?<!\S)0+(?=\d)"), "")
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        return None
    if tokenizer.separator is not None:
        made.add_special_tokens([END_OF_DOCUMENT])
        assert made.token_to_id(END_OF_DOCUMENT) == tokenizer.separator
    return made


def _words(words: Sequence[str]) -> library.Tokenizer:
    """Words with the ids 0, 1, ...; another word is an error, because there is no token for unknown words."""
    return library.Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}))
