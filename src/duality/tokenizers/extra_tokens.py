"""A tokenizer with more ids than its text needs: the further states of a model that others have trained.

The released Duo has 50 258 states: the 50 257 ids of GPT-2 and "[PAD]", which no text has and which is a state of the
uniform noise like any other. A model with that state is another model than one without it, so the state is kept.

What must hold: encoding never gives an extra id; decoding shows its name; the other ids are as they were.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import tokenizers as library

from duality.tokenizers.base import Tokenizer, canonical
from duality.tokenizers.library_json import LibraryTokenizer
from duality.tokenizers.tokenizer import BPETokenizer

PADDING = "[PAD]"
MOST_EXTRA = 1024


def with_extra_tokens(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """The tokenizer with ``count`` further ids after its own, which no text has: "[PAD]", "[EXTRA 1]", ..."""
    if not count:
        return tokenizer
    if not isinstance(tokenizer, (BPETokenizer, LibraryTokenizer)) or count > MOST_EXTRA:
        raise ValueError(
            f"the model has {count} states more than the tokenizer has ids ({tokenizer.vocab_size}): only byte pairs "
            f"and a tokenizer.json can have more ids than their text needs, and at most {MOST_EXTRA}; give the "
            "tokenizer that the model was trained with"
        )
    kind = "bpe" if isinstance(tokenizer, BPETokenizer) else "library"
    definition = json.loads(tokenizer.definition)
    made = library.Tokenizer.from_str(json.dumps(definition[kind]))
    made.add_special_tokens(list(extra_names(made.get_vocab(), count)))
    content = canonical({**definition, kind: json.loads(made.to_str())})
    extended = BPETokenizer(content) if kind == "bpe" else LibraryTokenizer(content)
    if extended.vocab_size != tokenizer.vocab_size + count:
        raise ValueError(
            f"the tokenizer has ids without a token, so that {count} further ids would not come after its "
            f"{tokenizer.vocab_size}: give the tokenizer that the model was trained with"
        )
    return extended


def extra_names(taken: dict[str, int], count: int) -> Sequence[str]:
    """Names for ``count`` ids that the vocabulary does not have.

    >>> extra_names({"[EXTRA 1]": 7}, 3)
    ['[PAD]', '[EXTRA 2]', '[EXTRA 3]']
    """
    names = [PADDING, *(f"[EXTRA {number}]" for number in range(1, len(taken) + count + 1))]
    return [name for name in names if name not in taken][:count]
