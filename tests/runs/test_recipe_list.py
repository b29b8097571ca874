"""The list of recipes in recipe_list.json is that of the recipes, and showing it is cheap."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from support.runs import ROOT


def test_the_list_is_that_of_the_recipes() -> None:
    specification = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "site" / "generate.py")
    assert specification is not None
    assert specification.loader is not None
    generate = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(generate)
    kept = (ROOT / "src" / "duality" / "runs" / "recipe_list.json").read_text(encoding="utf-8")
    assert kept == generate.recipe_list(), "a recipe has changed: run `python docs/site/generate.py`"


def test_showing_it_imports_no_torch() -> None:
    script = "import sys\nfrom duality.cli.main import main\nmain(['recipes'])\nassert 'torch' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    kept = (ROOT / "src" / "duality" / "runs" / "recipe_list.json").read_text(encoding="utf-8")
    assert all(row["name"] in shown for row in json.loads(kept))
