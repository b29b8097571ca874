"""Tokenizers: from text to ids and back.

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
