"""Where the numbers of a run come from: its tokens, the versions of the packages, the commit.

What must hold: a checkpoint is read with the tokenizer that it was trained with, and a run continues on the tokens that
it began with; anything else is refused.
"""

from __future__ import annotations

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from duality.data.corpus import Corpus
from duality.data.tokenizers import Tokenizer


def check_tokenizer(state: dict[str, Any], tokenizer: Tokenizer, where: Path) -> None:
    """Refuse a checkpoint that was trained with another tokenizer."""
    if (state["vocab_size"], state["tokenizer"]) != (tokenizer.vocab_size, tokenizer.fingerprint):
        raise ValueError(
            f"the checkpoint in {where} was trained with a vocabulary of {state['vocab_size']} tokens "
            f"(fingerprint {state['tokenizer'][:12]}), but the tokenizer there has {tokenizer.vocab_size} "
            f"({tokenizer.fingerprint[:12]}): put back the tokenizer.json that belongs to it"
        )


def corpus_identity(corpus: Corpus) -> dict[str, Any]:
    """Checksums of the tokens, and the names of the labels."""
    stores = {"train": corpus.train, "validation": corpus.validation}
    return {
        "tokenizer": corpus.tokenizer.fingerprint,
        "labels": list(corpus.label_names),
        **{name: [shard.sha256 for shard in store.index.shards] for name, store in stores.items()},
    }


def read_identity(folder: Path) -> dict[str, Any]:
    """The ``corpus_identity`` with which the run began."""
    identity: dict[str, Any] = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    return {"labels": [], **identity}  # runs of older versions have no labels


def check_corpus(folder: Path, corpus: Corpus, moved_to: str | None = None) -> None:
    """Refuse to continue on other tokens than the run began with; ``moved_to`` is where its corpus is said to be."""
    if read_identity(folder) == corpus_identity(corpus):
        return
    if moved_to is not None:
        raise ValueError(
            f"{moved_to} has other tokens than {folder} was trained on: give the same text, or start a new run in "
            "another folder"
        )
    raise ValueError(f"the corpus of {folder} has changed since the run began: restore it, or start a new run")


def environment() -> dict[str, Any]:
    """Versions that may change numbers."""
    packages = ("diffusion-duality", "torch", "numpy", "tokenizers", "safetensors")
    versions = {name: metadata.version(name) for name in packages if _installed(name)}
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "packages": versions,
        "commit": source_commit(),
    }


def source_commit() -> str | None:
    """The commit of this library's own repository, if it runs from one and git is there."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        result = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return result.stdout.strip() or None


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
