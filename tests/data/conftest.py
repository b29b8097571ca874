"""Fixtures of the tests of data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


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
