"""Small runs of several methods, and one studio that shows them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import session
from support.runs import small_recipe

if TYPE_CHECKING:
    from support.studio import Served

# Without the extra [studio], which `make test` installs, there is nothing to test here.
if any(importlib.util.find_spec(name) is None for name in ("pydantic", "starlette", "uvicorn")):
    collect_ignore_glob = ["test_*.py"]

METHODS = ("duo", "mdlm", "ar", "sedd-uniform", "plaid")


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Path:
    """A folder of short runs."""
    folder = tmp_path_factory.mktemp("shelf")
    for name in METHODS:
        session.train(small_recipe(english, "training.steps=2", name=f"{name}-laptop"), folder / name)
    return folder


@pytest.fixture(scope="session")
def server(shelf: Path) -> Iterator[Served]:
    """A studio that shows these runs, behind a real socket."""
    from support.studio import served, studio_of

    with served(studio_of(shelf)) as found:
        yield found
