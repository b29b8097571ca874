"""Where the numbers of a run come from: its tokens, the versions of the packages, the commit.

What must hold: whatever of these can change a number is recorded with a run; nothing here needs git, a network, or a
package that is not installed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from duality.data.corpus import Corpus


def corpus_identity(corpus: Corpus) -> dict[str, Any]:
    """Checksums of the text and of its tokens, and the names of the labels."""
    stores = {"train": corpus.train, "validation": corpus.validation}
    return {
        "text": corpus.text,
        "tokenizer": corpus.tokenizer.fingerprint,
        "labels": list(corpus.label_names),
        **{name: [shard.sha256 for shard in store.shards] for name, store in stores.items()},
    }


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
