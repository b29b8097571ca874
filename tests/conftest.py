"""Shared by all tests: a separate cache, small texts and stores, and one thread, so that runs are equal bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import settings
from support import session
from support.runs import ROOT, small_recipe

from duality.data.documents import Document
from duality.data.encode import write_store
from duality.data.store import TokenStore
from duality.fused import lazy, loss
from duality.tokenizers.tokenizer import ByteTokenizer

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


@pytest.fixture
def hub_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A folder that the library `datasets` reads as it would read the hub."""
    pytest.importorskip("datasets", reason="the library `datasets` is not installed")
    from datasets import config, disable_progress_bars

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the variable is read at the import
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "hf")
    disable_progress_bars()

    def make(**splits: int) -> str:
        folder = tmp_path / "data set"
        folder.mkdir()
        for split, count in splits.items():
            lines = [f'{{"body": "{split} {number}", "label": {number}}}\n' for number in range(count)]
            (folder / f"{split}.jsonl").write_text("".join(lines))
        return f"hf:{folder}:body"

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Path:
    """A finished Duo run that has kept four checkpoints."""
    folder = tmp_path_factory.mktemp("variance") / "duo"
    session.train(small_recipe(english, "training.keep=4"), folder)
    return folder


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory, english: Path) -> dict[str, Path]:
    """Short runs of other methods."""
    folder = tmp_path_factory.mktemp("others")
    for name in ("mdlm", "sedd-uniform", "ar"):
        session.train(small_recipe(english, "training.steps=2", name=f"{name}-laptop"), folder / name)
    return {path.name: path for path in folder.iterdir()}
