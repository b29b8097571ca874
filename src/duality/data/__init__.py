"""Data: from a corpus's name to batches of ids.

    sources     named corpora, fetched through the package index and checked
    documents   what a corpus is made of: files, folders, .jsonl, as a stream (textfiles: the reading)
    splitting   training and validation text
    tokenizers  text to ids and back (pretrained: published ones; tokenizer_specs: what to train or to fetch)
    store       ids on the disk, mapped into memory (write: how they get there)
    corpus      all of the above in one call, kept in the cache
    packing     ids as rows of one length, across documents or each by itself
    loader      rows as batches: a pure function of (seed, step)

    corpus = prepare("austen", BPE(2048))
    loader = Loader(Sequences(corpus.train, length=128), batch_size=32, seed=1)
    batch = loader.batch(step=0)

Each line above imports from those before it, never the other way. What must hold throughout: no text is
dropped or changed on its way (but by a tokenizer that says so), and what a step sees depends on its number alone.
"""

from duality.data.cache import cache_folder
from duality.data.corpus import Corpus, encode_corpus, prepare
from duality.data.documents import Document, read_documents
from duality.data.loader import Batch, Loader, epoch_order
from duality.data.packing import Sequences
from duality.data.sources import DEFAULT_SOURCE, SOURCES, Source, fetch
from duality.data.splitting import Split, choose_split
from duality.data.store import TokenStore
from duality.data.tokenizer_specs import BPE, Bytes, Characters, Pretrained, TokenizerSpec, expected_vocab_size
from duality.data.tokenizers import (
    END_OF_DOCUMENT,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    load_tokenizer,
)
from duality.data.write import write_store

__all__ = [
    "BPE",
    "DEFAULT_SOURCE",
    "END_OF_DOCUMENT",
    "SOURCES",
    "BPETokenizer",
    "Batch",
    "ByteTokenizer",
    "Bytes",
    "CharTokenizer",
    "Characters",
    "Corpus",
    "Document",
    "Loader",
    "Pretrained",
    "Sequences",
    "Source",
    "Split",
    "TokenStore",
    "Tokenizer",
    "TokenizerSpec",
    "WordPieceTokenizer",
    "cache_folder",
    "choose_split",
    "encode_corpus",
    "epoch_order",
    "expected_vocab_size",
    "fetch",
    "load_tokenizer",
    "prepare",
    "read_documents",
    "write_store",
]
