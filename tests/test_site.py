"""The documentation as a site: it builds without a warning and without the network, and its links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.runs import ROOT

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytest.importorskip("mkdocstrings", reason="needs the extra docs")


def loaded(name: str) -> ModuleType:
    """A module of docs/site, which is no package."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_links_lead_to_pages_of_the_site() -> None:
    hook = loaded("repository_pages")
    text = "[a](../src/duality/noise.py) [b](cli.md#x) [c](https://x.org/y.md) `[d](../README.md)` [e](../no.py)"
    assert hook.with_links_of_the_site(text, "results.md", ROOT) == (
        "[a](source/src/duality/noise.py.md) [b](cli.md#x) [c](https://x.org/y.md) `[d](../README.md)` [e](../no.py)"
    )
    text = "[a](../../CHANGELOG.md) [b](../cli.md) ![c](../theory.png) [d](the-duality-in-ten-cells.ipynb)"
    assert hook.with_links_of_the_site(text, "guides/own-data.md", ROOT) == (
        "[a](../source/CHANGELOG.md) [b](../cli.md) ![c](../theory.png) [d](the-duality-in-ten-cells.md)"
    )
    text = "[a](docs/cli.md#tokenizers) [b](LICENSE) ![c](docs/theory.png)"
    assert hook.with_links_of_the_site(text, "README.md", ROOT) == (
        "[a](cli.md#tokenizers) [b](source/LICENSE.md) ![c](theory.png)"
    )
    text = "[a](docs/cli.md) [b](README.md)"
    assert hook.with_links_of_the_site(text, "source/CONTRIBUTING.md", ROOT) == "[a](../cli.md) [b](../README.md)"
    assert hook.place_in_repository(hook.place_in_site("src/duality/noise.py")) == "src/duality/noise.py"


def test_pipes_in_the_code_of_tables_have_no_backslash() -> None:
    text = "| `a\\|b` | c \\| d |\n`e\\|f`"
    assert loaded("repository_pages").with_pipes_in_code(text) == "| `a|b` | c \\| d |\n`e\\|f`"


def test_a_notebook_becomes_a_page_with_its_pictures(tmp_path: Path) -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"}}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": [picture, {"output_type": "stream", "text": ["2\n"]}]},
    ]
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    text, pictures = loaded("repository_pages").page_of_notebook(path)
    assert text.split("\n\n")[:2] == ["# Title\ntext", "```python\n1 + 1\n```"]
    assert "](book-1.png)" in text
    assert "```text\n2\n```" in text
    assert "<Figure>" not in text
    assert pictures == {"book-1.png": b"\x89PNG\r\n\x1a\n"}


def test_docstrings_are_markdown() -> None:
    text = "Words:\n    a table\n    of two lines\nmore words\n>>> 1 + 1\n2\n\nthe end"
    expected = "Words:\n\n    a table\n    of two lines\nmore words\n\n```pycon\n>>> 1 + 1\n2\n```\n\nthe end"
    assert loaded("docstrings").as_markdown(text) == expected


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {
        page.relative_to(tmp_path / "site").as_posix(): page.read_text(encoding="utf-8")
        for page in (tmp_path / "site").rglob("*.html")
    }
    assert {
        "index.html",
        "cli.html",
        "api.html",
        "guides/own-data.html",
        "source/src/duality/protocols.py.html",
    } <= set(pages)
    for name, page in pages.items():
        fetched = re.findall(
            r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)", page
        )
        assert not fetched, f"{name} loads {fetched}"
    assert "log_likelihood" in pages["api.html"]
    assert "many GPUs" in pages["index.html"]
    assert "::: duality" not in "".join(pages.values())
