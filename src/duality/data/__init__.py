"""Data: from the name of a corpus to batches of ids.

    leftovers        temporary names, and what dead processes have left under them
    files            checksums, flushing to the disk, atomic replacement of a file
    jsonfiles        JSON files of bounded size and depth
    progress         how much of long work is done, and how long the rest takes
    manifest         folders whose files are verified before they are used
    cache            the folder where fetched and prepared data are kept
    cleaning         what the cache holds, by kind, and removing it
    package_index    files of the Python package index, fetched by checksum; nothing of them is run
    gutenberg        books of Project Gutenberg as plain text
    smiles           molecules as text, made canonical
    sources          named corpora, fetched from the package index and checked
    textfiles        text files as a stream of pieces
    records          the texts of .jsonl, .csv, .tsv, .parquet, .arrow and .fasta files
    detokenizers     benchmarks that are published as separate words, as ordinary text
    datasets         the datasets of the literature by name: their parts, readers and places
    hub              datasets of the Hugging Face hub, as files of this machine
    mixtures         several corpora in one, each with its share
    places           where a corpus is: paths, named sources and datasets, and their files
    documents        the documents of a corpus: files, folders, named corpora and datasets
    splitting        the documents for training and for validation
    tokenizer_base   what every tokenizer is: ids, definitions, fingerprints
    symbols          the 27 symbols of text8, nucleotides, the tokens of SMILES
    library_json     any tokenizer of the library `tokenizers`
    fast_pairs       byte pairs encoded by tiktoken, with the same ids
    tokenizers       text to ids and back
    pretrained       published tokenizers
    extra_tokens     further ids that no text has, for the models of others
    tokenizer_files  any tokenizer.json, on the disk or of the Hugging Face hub
    transformers_files  our tokenizers as files that Hugging Face transformers reads
    tokenizer_specs  what a recipe says about its tokenizer: what to train or to fetch
    memory           texts and tensors given from Python, written as a corpus
    store            the ids on the disk, mapped into memory, in shards
    encoding         the documents as ids, in parallel
    write            documents written as a store
    survey           what is in a corpus, and the sample of it that BPE is trained on
    corpus           a corpus read, split, tokenized and stored in one call, kept in the cache
    packing          the ids of a store as rows of one length, with padding
    loader           the rows as batches: a pure function of (seed, step)
    stream           a corpus that is read some documents at a time while a training goes on

    corpus = prepare("austen", BPE(2048))
    loader = Loader(Sequences(corpus.train, length=128), batch_size=32, seed=1)
    batch = loader.batch(step=0)

Each module imports only from the modules above it. What must hold: no text is dropped or changed, except by a tokenizer
whose docstring says so; the batch of a step depends on the seed and the step only.
"""
