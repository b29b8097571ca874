"""Shared by the tests of the data layer: small corpora on the disk and stores made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from duality.data import ByteTokenizer, Document, TokenStore, write_store


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest the mark used here."""
    config.addinivalue_line("markers", "network: needs pip to reach a package index")


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
