"""Where the numbers of a run come from: its tokens, the versions of the packages, the commit.

What must hold: a checkpoint is read with the tokenizer that it was trained with, and a run continues on the tokens that
it began with; anything else is refused.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from duality.data.corpus import Corpus
from duality.files.json_files import MIB, read_json
from duality.hub import package
from duality.tokenizers.library import load_tokenizer
from duality.tokenizers.tokenizer import FILE as TOKENIZER
from duality.tokenizers.tokenizer import Tokenizer
from duality.training.checkpoint import Checkpoint

CORPUS = "corpus.json"

_MOST_IDENTITY_BYTES = 64 * MIB  # a shard has 64 million tokens and 67 bytes of checksum
_MOST_TOKENIZER_BYTES = 256 * MIB  # that of a vocabulary of 256 000 pieces has 35
_RESTORE_TOKENIZER = "put back the file that belongs to the run"


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of the run or model in ``folder``, with all its parts; a wrong file is a ``ValueError``."""
    name = package.TOKENIZER if package.exists(folder) else TOKENIZER
    path = folder / name
    if path.exists():
        read_json(path, _MOST_TOKENIZER_BYTES, _RESTORE_TOKENIZER)
    found = load_tokenizer(folder, name)
    try:
        # the parts are made when they are first asked for, by a library that raises exceptions of any kind
        size, separator = found.vocab_size, found.separator
        if size > 0 and (separator is None or size > separator >= 0) and found.fingerprint:
            return found
        problem: object = f"{size} tokens, the end of a text is {separator}"
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        problem = error
    raise ValueError(f"{path} is damaged ({problem}): {_RESTORE_TOKENIZER}")


def check_tokenizer(saved: Checkpoint, tokenizer: Tokenizer, where: Path) -> None:
    """Refuse a checkpoint that was trained with another tokenizer."""
    size, fingerprint = saved.state.get("vocab_size"), saved.state.get("tokenizer")
    if type(size) is not int or not isinstance(fingerprint, str):
        raise ValueError(
            f"{saved.path / 'state.json'} does not say which tokenizer it was trained with: restore it from a backup"
        )
    if (size, fingerprint) != (tokenizer.vocab_size, tokenizer.fingerprint):
        raise ValueError(
            f"the checkpoint in {where} was trained with a vocabulary of {size} tokens "
            f"(fingerprint {fingerprint[:12]}), but the tokenizer there has {tokenizer.vocab_size} "
            f"({tokenizer.fingerprint[:12]}): put back the tokenizer.json that belongs to it"
        )


def corpus_identity(corpus: Corpus) -> dict[str, Any]:
    """Checksums of the text and of its tokens, and the names of the labels."""
    stores = {"train": corpus.train, "validation": corpus.validation}
    return {
        "text": corpus.text,
        "tokenizer": corpus.tokenizer.fingerprint,
        "labels": list(corpus.label_names),
        **{name: [shard.sha256 for shard in store.index.shards] for name, store in stores.items()},
    }


def unknown_identity(tokenizer: Tokenizer) -> dict[str, object]:
    """The ``corpus_identity`` of a run that was imported: which text it was trained on cannot be checked."""
    return {"tokenizer": tokenizer.fingerprint, "labels": [], "train": [], "validation": []}


def is_imported(folder: Path) -> bool:
    """Whether the run in ``folder`` does not know its corpus, because others have trained it."""
    if not (folder / CORPUS).is_file():
        return False
    identity = read_identity(folder)
    return not identity["train"] and not identity["validation"]


def read_identity(folder: Path) -> dict[str, Any]:
    """The ``corpus_identity`` with which the run began."""
    path = folder / CORPUS
    if package.exists(folder) and not path.exists():
        raise ValueError(f"{folder} does not say which text it was trained on: give another text (--data, data=)")
    found = read_json(path, _MOST_IDENTITY_BYTES)
    identity = found if isinstance(found, dict) else {}
    lists = [identity.get(name) for name in ("train", "validation", "labels")]
    texts = [identity.get("tokenizer"), identity.get("text", "")]  # not every corpus has a text
    if not all(isinstance(each, str) for each in texts) or not all(
        isinstance(each, list) and all(isinstance(item, str) for item in each) for each in lists
    ):
        raise ValueError(
            f"{path} is damaged (it needs the checksums tokenizer, train and validation, and labels): restore it from "
            "a backup"
        )
    return identity


def check_corpus(folder: Path, corpus: Corpus, moved_to: str | None = None) -> None:
    """Refuse to continue on other tokens than the run began with; ``moved_to`` is where its corpus is said to be."""
    if is_imported(folder):
        return
    found = corpus_identity(corpus)
    own = {"text": found.get("text"), **read_identity(folder)}
    if own != {"text": own["text"], **found}:
        raise _another_corpus(folder, moved_to)


def check_text(folder: Path, moved_to: str | None, sha256: str) -> None:
    """Refuse a text whose checksum is not that of the run's corpus, before it is tokenized."""
    if read_identity(folder).get("text", sha256) != sha256:
        raise _another_corpus(folder, moved_to)


def _another_corpus(folder: Path, moved_to: str | None) -> ValueError:
    if moved_to is not None:
        return ValueError(
            f"{moved_to} has another text than {folder} was trained on: give the same text, or start a new run in "
            "another folder"
        )
    return ValueError(f"the corpus of {folder} has changed since the run began: restore it, or start a new run")


def corpus_facts(corpus: Corpus) -> dict[str, str]:
    """What of a corpus all ranks of a job must have in common, in short."""
    written = json.dumps(corpus_identity(corpus), sort_keys=True)
    return {"corpus": hashlib.sha256(written.encode("utf-8")).hexdigest()[:12]}


def code_version() -> str:
    """The version of this library and a checksum of its source files."""
    digest, root = hashlib.sha256(), Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode("utf-8") + b"\0" + path.read_bytes())
    return f"{metadata.version('diffusion-duality')} {digest.hexdigest()[:12]}"


def package_versions() -> dict[str, str]:
    """The versions of packages that may change numbers, as far as they are installed."""
    found = {}
    for name in ("diffusion-duality", "torch", "numpy", "tokenizers", "safetensors"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def environment() -> dict[str, object]:
    """What a run is computed with: versions that may change numbers."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "packages": package_versions(),
        "commit": _source_commit(),
    }


def _source_commit() -> str | None:
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
