"""The list of recipes as `duality recipes` shows it, kept in recipe_list.json: building their networks takes seconds.

    python -m duality.runs.recipe_list      writes recipe_list.json again, after a recipe has changed

What must hold: recipe_list.json is what ``computed`` gives; a test compares them. Reading it imports neither torch nor
the recipes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = Path(__file__).with_name("recipe_list.json")


@dataclass(frozen=True)
class ListedRecipe:
    """What is shown of a recipe."""

    name: str
    parameters: int
    steps: int
    batch_size: int
    length: int
    summary: str
    source: str


def listed() -> list[ListedRecipe]:
    """All recipes, from the file."""
    return [ListedRecipe(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]


def computed() -> list[ListedRecipe]:
    """All recipes, from themselves."""
    from duality.models.describe import parameters
    from duality.recipes.catalogue import RECIPES

    recipes = [make() for make in RECIPES.values()]
    return [
        ListedRecipe(
            name=each.name,
            parameters=parameters(each)[0],
            steps=each.training.steps,
            batch_size=each.training.batch_size,
            length=each.data.length,
            summary=each.summary,
            source=each.source,
        )
        for each in recipes
    ]


if __name__ == "__main__":
    text = ",\n".join(json.dumps(asdict(row)) for row in computed())
    FILE.write_text(f"[\n{text}\n]\n", encoding="utf-8")
