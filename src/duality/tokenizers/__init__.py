"""Tokenizers: from text to ids and back.

    specs               what a recipe says about its tokenizer; ``train`` makes the tokenizer
    tokenizer           the interface ``Tokenizer``; bytes, numbers, characters, text8, nucleotides, tokens of SMILES
    library             byte pairs, word pieces and any tokenizer.json, published ones and those of the hub;
                        ``load_tokenizer`` reads what was saved
    fast_pairs          byte pairs encoded by `tiktoken`, with the same ids
    pieces              how ids read one by one
    transformers_files  our tokenizers as files that `transformers` reads

``TOKENIZERS`` are the tokenizers that a recipe can name.
"""

from duality.registry import Registry

TOKENIZERS = Registry(
    "tokenizer",
    {
        "bytes": "duality.tokenizers.specs:Bytes",
        "characters": "duality.tokenizers.specs:Characters",
        "bpe": "duality.tokenizers.specs:BPE",
        "gpt2": "duality.tokenizers.specs:gpt2",
        "bert-base-uncased": "duality.tokenizers.specs:bert_base_uncased",
        "numbers": "duality.tokenizers.specs:Numbers",
        "text8": "duality.tokenizers.specs:Text8",
        "smiles": "duality.tokenizers.specs:Smiles",
        "nucleotides": "duality.tokenizers.specs:Nucleotides",
        "file": "duality.tokenizers.specs:TokenizerFile",
        "hub": "duality.tokenizers.specs:HubTokenizer",
    },
)
