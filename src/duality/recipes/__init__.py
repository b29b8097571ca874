"""Recipes: everything that rebuilds a run, as data.

    recipe       the frozen dataclasses ``Recipe``, ``Data`` and ``Generation``
    catalogue    all recipes by name; a recipe as JSON and back; ``--set field=value``
    derive       recipes that follow from the recipe of a run: distill it, finetune it
    corpus       what a recipe makes of its corpus: sequences, batches, the vocabulary
    config       frozen dataclasses as JSON and back, with every name and type checked

To add a recipe: a few lines in ``recipes.toml``, which say what it is derived from and what differs.
"""
