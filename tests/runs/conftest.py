"""Runs that several tests of this folder read."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import small_recipe

from duality.runs import session


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
