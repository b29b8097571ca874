"""Molecule recipes: the models of the paper's Table 1 on QM9, molecules of up to nine heavy atoms as SMILES.

One document is one molecule, one token is one character, and a row of 24 tokens is one molecule with the end-of-text
tokens that follow it (``data.padding=model``), so that a model learns where a molecule ends. What is written can be
checked: `duality quality --score molecules` counts the valid ones with RDKit. docs/results.md gives the reasons for
the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from duality.methods.duo import Duo
from duality.networks.dit import DiT
from duality.recipes import laptop
from duality.recipes.recipe import Data, Generation, Recipe
from duality.tokenizers.specs import Characters
from duality.training.settings import Training

_DATA = Data(corpus="qm9", tokenizer=Characters(), length=24, packing="document", padding="model")
_NETWORK = DiT(width=64, depth=4, heads=4, time_width=32, dropout=0.0, conv=3, activation="relu2", embedding_std=1.0)
_TRAINING = Training(
    steps=12_000,
    batch_size=64,
    optimizer="muon",
    learning_rate=4e-3,
    warmup=100,
    decay=0.5,
    betas=(0.9, 0.99),
    weight_decay=0.05,
    ema=0.995,
    log_every=50,
    eval_every=3_000,
    save_every=500,
)


def twin(make: Callable[[], Recipe], steps: int | None = None) -> Recipe:
    """The recipe of a laptop recipe's method on molecules."""
    base = make()
    method = replace(base.method, curriculum=0.0) if isinstance(base.method, Duo) else base.method
    return replace(
        base,
        name=base.name.replace("-laptop", "-molecules"),
        summary=f"{type(base.method).__name__} on QM9 molecules, SMILES characters",
        source=base.source.replace("laptop twin", "molecule twin"),
        method=method,
        data=_DATA,
        backbone=_NETWORK,
        training=_TRAINING if steps is None else replace(_TRAINING, steps=steps),
        generation=Generation(),  # a lower temperature writes more valid molecules, and more that are known
    )


def longer(make: Callable[[], Recipe]) -> Recipe:
    """The same for an hour on two cores: a wider network and more steps."""
    base = twin(make)
    return replace(
        base,
        name=f"{base.name}-hour",
        summary=f"{base.summary}, an hour",
        backbone=replace(_NETWORK, width=128),
        training=replace(base.training, steps=30_000, learning_rate=2e-3),
    )


ROWS: tuple[Callable[[], Recipe], ...] = (
    *(
        partial(twin, make)
        for make in (
            laptop.duo_laptop,
            laptop.mdlm_laptop,
            laptop.udlm_laptop,
            laptop.sedd_absorb_laptop,
            laptop.sedd_uniform_laptop,
            laptop.d3pm_absorb_laptop,
            laptop.d3pm_uniform_laptop,
        )
    ),
    partial(twin, laptop.ar_laptop, 4_000),
    partial(longer, laptop.duo_laptop),
    partial(longer, laptop.mdlm_laptop),
)
