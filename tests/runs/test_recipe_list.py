"""The list of recipes in recipe_list.json is that of the recipes, and showing it is cheap."""

from __future__ import annotations

import subprocess
import sys

from duality.runs.listing import compute_list, list_recipes


def test_the_list_is_that_of_the_recipes() -> None:
    assert list_recipes() == compute_list(), "a recipe has changed: run `python -m duality.runs.listing`"


def test_showing_it_imports_no_torch() -> None:
    script = "import sys\nfrom duality.cli.main import main\nmain(['recipes'])\nassert 'torch' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert all(row.name in shown for row in list_recipes())
