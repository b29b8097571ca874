"""Shared by all tests: a separate cache, small texts and stores, and one thread, so that runs are equal bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import settings
from support.runs import ROOT

from duality.data.documents import Document
from duality.data.store import TokenStore
from duality.data.tokenizers import ByteTokenizer
from duality.data.write import write_store
from duality.fused import lazy, loss

torch.set_num_threads(1)

# No deadline per example, as the machine may be busy. In CI property tests take the same examples each time; elsewhere
# they look for new ones.
settings.register_profile("duality", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("duality")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's cache, except those that fetch over the network and say so."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUALITY_CACHE", str(cache))
        yield cache


@pytest.fixture(scope="session")
def golden() -> Path:
    """Reference tensors of the released implementation."""
    return ROOT / "tests" / "golden"


@pytest.fixture(scope="session")
def english() -> Path:
    """A real English text of the repository: the licence, 11 kB."""
    return ROOT / "LICENSE"


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., TokenStore]:
    """Byte stores of given texts, each in a folder of its own."""
    made = 0

    def make(texts: Sequence[str], shard_tokens: int = 1 << 20) -> TokenStore:
        nonlocal made
        made += 1
        documents = [Document(f"text {number}", (text,)) for number, text in enumerate(texts)]
        return write_store(tmp_path / f"store-{made}", documents, ByteTokenizer(), shard_tokens=shard_tokens)

    return make


@pytest.fixture
def novel(tmp_path: Path) -> Path:
    """A text file of two thousand short lines."""
    path = tmp_path / "novel.txt"
    lines = [f"Line {number} of the novel, in which little happens.\n" for number in range(2000)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of five rows, computed two at a time: most possible errors are at their borders."""
    monkeypatch.setattr(lazy, "chunk_rows", lambda *sizes: 5)
    for module in (lazy, loss):
        monkeypatch.setattr(module, "block_rows", lambda *sizes: 2)
