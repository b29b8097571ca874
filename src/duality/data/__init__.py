"""Data: from the name of a corpus to batches of ids.

    conversions      books without the line breaks of an edition, molecules in canonical form
    named            texts of the package index, datasets of the literature (corpora.json), mixtures of several corpora
    detokenizers     benchmarks that are published as separate words, as ordinary text
    readers          the text of files of every format: UTF-8, .jsonl, .csv, .tsv, tables of Arrow and .fasta
    documents        from the string that names a corpus to its documents: files, folders, named corpora and datasets
    memory           texts and tensors given from Python, written as a corpus
    store            the ids on the disk, mapped into memory, in shards
    encode           the documents as ids, in parallel, and written as a store
    survey           a corpus before it is tokenized: what is in it, its two parts, the sample that BPE is trained on
    corpus           a corpus read, split, tokenized and stored in one call, kept in the cache
    packing          the ids of a store as rows of one length, with padding
    frequencies      the nats per token that counts of tokens and of pairs give for the rows
    loader           the rows as batches, of a mixture each corpus with its share: a pure function of (seed, step)
    stream           a corpus that is read some documents at a time while a training goes on

    corpus = prepare("austen", BPE(2048))
    loader = Loader(Sequences(corpus.train, length=128), batch_size=32, seed=1)
    batch = loader.batch(step=0)

Each module imports only from the modules above it. What must hold: no text is dropped or changed, except by a tokenizer
whose docstring says so; the batch of a step depends on the seed and the step only.
"""

from typing import Literal

DEFAULT_SOURCE = "gutenberg-prose"
TEXT_COLUMN = "text"
Padding = Literal["model", "light", "ignore"]
