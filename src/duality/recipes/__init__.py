"""Recipes: everything that rebuilds a run, written as functions that derive from each other.

    recipe      the frozen dataclasses ``Recipe`` and ``Data``; a distillation of a run
    laptop      recipes that train in minutes on two CPU cores
    paper       a recipe for each row of the paper's tables
    catalogue   all recipes by name; a recipe as JSON and back; ``--set field=value``
    index       what the index of the paper is made of
    tables      every table of the paper with its recipes; ``sample_tables`` has those of samples
    paper_figures   every figure
    config      frozen dataclasses as JSON and back, with every name and type checked

To add a recipe: a function in ``laptop`` or ``paper``, and its name in that file's ``ROWS``.
"""
