"""Small runs, and where the repository is."""

from __future__ import annotations

from pathlib import Path

from duality.recipes.catalogue import recipe
from duality.recipes.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]


def quiet(_message: str) -> None:
    """A reporter that says nothing."""


def small_recipe(corpus: Path, *assignments: str, name: str = "duo-laptop") -> Recipe:
    """A recipe that trains in a second: 20 steps of a network of 32 x 2 on bytes."""
    base = (
        f"data.corpus={corpus}",
        "data.tokenizer=bytes",
        "data.length=32",
        "backbone=nano",
        "backbone.width=32",
        "training.steps=20",
        "training.batch_size=8",
        "training.warmup=4",
        "training.log_every=1",
        "training.eval_every=0",
        "training.save_every=5",
    )
    return recipe(name, (*base, *assignments))
