"""The tokenizer of a released model, and a mask token that is one of its pieces.

    GPT-2                50 257 ids; Duo has "[PAD]" too, MDLM, SEDD and AR a last state that no text has
    BERT                 30 522 ids, of which 103 is "[MASK]", the mask token itself
    text8, as released   35 ids: eight special ones, of which 4 is "[MASK]", then a to z and the space

Our mask token, and the state that an autoregressive model never writes, is the last one. Where theirs is a piece of the
vocabulary, our network has one state more: its rows are those of the piece, whose own output is never believed.

What must hold: the model with the further state gives every token the probability that the released one gives it, and
``without_further_state`` is the inverse of ``with_further_state``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from duality.files.json_files import read_json
from duality.files.progress import Reporter
from duality.tokenizers import TOKENIZERS
from duality.tokenizers.library import MOST_BYTES, LibraryTokenizer, load_tokenizer, with_extra_tokens
from duality.tokenizers.specs import FROM_FILES, KeptTokenizer, TokenizerSpec, tokenizer_at
from duality.tokenizers.tokenizer import FILE, Tokenizer

TEXT8 = "text8 as released"  # no name that a user gives: it is what a model of 35 states has

# The tokenizers of the released models by the number of ids: GPT-2, GPT-2 with "[PAD]", BERT, text8; their texts.
_TOKENIZERS = {50_257: "gpt2", 50_258: "gpt2", 30_522: "bert-base-uncased", 35: TEXT8}
_CORPORA = {"gpt2": "openwebtext", "bert-base-uncased": "lm1b", TEXT8: "text8"}
_SPECIAL = ("[CLS]", "[SEP]", "[BOS]", "[EOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]")
_NEVER = -1e6  # the logit of a token that is never written, as in the released code
_WEIGHT, _BIAS = "backbone.head.weight", "backbone.head.bias"
_ROWS = ("backbone.embedding", _WEIGHT, _BIAS)


def find_tokenizer(
    place: str | None, num_states: int, uniform: bool, report: Reporter
) -> tuple[Tokenizer, TokenizerSpec, str, int | None]:
    """The tokenizer at a place, or the one that released models of this size have; what it was made for.

    With ``uniform`` noise a text need not have all states; else one is the mask token, or what an autoregressive model
    never writes. The last of the four is the piece that is the mask token, None if no piece is.
    """
    num_tokens = num_states if uniform else num_states - 1
    name = place or _TOKENIZERS.get(num_tokens) or _TOKENIZERS.get(num_states)
    if name is None:
        raise ValueError(
            f"a model of {num_tokens:,} tokens has no known tokenizer: give --tokenizer, which is the folder of a run, "
            "a tokenizer.json, hf:OWNER/NAME, or a name such as bytes"
        )
    spec, made = _named_tokenizer(name, report)
    size, mask = made.vocab_size, _piece(made, "[MASK]", "<mask>")
    if uniform or size != num_states:
        mask = None
    if mask is not None:
        num_tokens = num_states
    if size > num_tokens or (size < num_tokens and not uniform):
        others = " and a mask token" if size < num_tokens else ""
        raise ValueError(
            f"the tokenizer {name} has {size:,} ids, and the model {num_tokens:,} tokens{others}: give its own"
        )
    full = with_extra_tokens(made, num_tokens - size)
    if spec is None or size < num_tokens:
        spec = KeptTokenizer(None, num_tokens, full.fingerprint)
    return full, spec, _CORPORA.get(name, "unknown"), mask


def begin_of(tokenizer: Tokenizer) -> int | None:
    """The id that begins a sequence of an autoregressive model."""
    begin = _piece(tokenizer, "[BOS]", "[CLS]")
    return tokenizer.separator if begin is None else begin


def with_further_state(weights: Mapping[str, Tensor], mask: int) -> dict[str, Tensor]:
    """The weights of a network whose mask token is the piece ``mask``, as one whose mask token is the last state."""
    made = {name: torch.cat([value, value[mask][None]]) if name in _ROWS else value for name, value in weights.items()}
    made[_WEIGHT][mask], made[_BIAS][mask] = 0, _NEVER
    return made


def without_further_state(weights: Mapping[str, Tensor], mask: int) -> dict[str, Tensor]:
    """The weights as they were released."""
    made = {name: value[:-1].clone() if name in _ROWS else value for name, value in weights.items()}
    for name in _ROWS:
        made[name][mask] = weights[name][-1]
    return made


def _piece(tokenizer: Tokenizer, *names: str) -> int | None:
    """The id of the first of these special pieces that a tokenizer has."""
    if not isinstance(tokenizer, LibraryTokenizer):
        return None
    return next((found for name in names if (found := tokenizer.library.token_to_id(name)) is not None), None)


def _named_tokenizer(place: str, report: Reporter) -> tuple[TokenizerSpec | None, Tokenizer]:
    """A tokenizer by name, by file, of the hub or of a run; with its specification, if that alone makes it again."""
    folder = Path(place).expanduser()
    if place == TEXT8:
        return None, _released_text8()
    if folder.name == FILE:  # of this library, or of the library `tokenizers`
        with suppress(OSError, ValueError):
            content = read_json(folder, MOST_BYTES)
            folder = folder.parent if isinstance(content, dict) and "kind" in content else folder
    if folder.is_dir():
        return None, load_tokenizer(folder)
    spec = tokenizer_at(place) or (TOKENIZERS[place]() if place in TOKENIZERS else None)
    if spec is None or (spec.expected_vocab_size is None and place in TOKENIZERS) or place in ("bpe", "numbers"):
        raise ValueError(
            f"tokenizer is {place!r}: give gpt2, bert-base-uncased, bytes, text8, nucleotides, hf:OWNER/NAME, a "
            "tokenizer.json, or the folder of a run; others are made from a text, and would have other ids"
        )
    # a file may move and a model of the hub may change: what they hold now is kept in the run
    return None if isinstance(spec, FROM_FILES) else spec, spec.train((), progress=report)


def _released_text8() -> LibraryTokenizer:
    """The characters of text8 with the ids of the released code; any other character is "[UNK]"."""
    pieces = (*_SPECIAL, *"abcdefghijklmnopqrstuvwxyz ")
    made = tokenizers.Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, "[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(list(_SPECIAL))
    return LibraryTokenizer("library", json.loads(made.to_str()), "[EOS]")
