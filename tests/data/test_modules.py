"""The modules of `duality.data`: all are listed in its docstring, and each imports only from those above it."""

from __future__ import annotations

import re
from pathlib import Path

from duality import data

FOLDER = Path(data.__file__).parent
LISTED = re.findall(r"^    (\w+)  +\S", str(data.__doc__), re.MULTILINE)


def test_every_module_is_listed() -> None:
    assert sorted(LISTED) == sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def test_imports_go_up_the_list() -> None:
    for number, module in enumerate(LISTED):
        text = (FOLDER / f"{module}.py").read_text(encoding="utf-8")
        imported = re.findall(r"^\s*from duality\.data\.(\w+) import", text, re.MULTILINE)
        for names in re.findall(r"^\s*from duality\.data import (.+)", text, re.MULTILINE):
            imported += [name for name in names.split(", ") if name in LISTED]
        assert set(imported) <= set(LISTED[:number]), module
