"""Small trained models of several kinds, and folders of ``save_pretrained`` that a test may change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support import session
from support.runs import ROOT, small_recipe

from duality.models.model import Model, load, network
from duality.protocols import Vocabulary
from duality.tokenizers.tokenizer import ByteTokenizer

MOLECULES = "CCO\nc1ccccc1O\nCC(=O)N\nC1CCCCC1\nCC#N\nOCC(O)CO\nCNC(=O)C\nBrCCCl\n"


def train_kinds(folder: Path, english: Path) -> dict[str, Model]:
    """A Duo, an MDLM, an autoregressive, a class-conditional and a molecule model, trained for two steps each."""
    for author in ("austen", "melville"):
        (folder / "by_author" / author).mkdir(parents=True)
        text = english.read_text(encoding="utf-8")
        (folder / "by_author" / author / "book.txt").write_text(text[:4000] if author == "austen" else text[4000:])
    (folder / "molecules.txt").write_text(MOLECULES * 20)
    shorter = ("training.steps=2", "training.warmup=1")
    recipes = {
        "duo": small_recipe(english, *shorter),
        "mdlm": small_recipe(english, *shorter, name="mdlm-laptop"),
        "ar": small_recipe(english, *shorter, name="ar-laptop"),
        "labels": small_recipe(folder / "by_author", *shorter, name="duo-laptop-authors"),
        "molecules": small_recipe(
            folder / "molecules.txt",
            *shorter,
            "data.tokenizer=smiles",
            "data.documents=lines",
            "data.length=24",
            name="mdlm-molecules",
        ),
    }
    for name, recipe in recipes.items():
        session.train(recipe, folder / name)
    return {name: load(folder / name) for name in recipes}


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def untrained_model(name: str, labels: tuple[str, ...] = ()) -> Model:
    """A model in memory with random weights, for what needs no run."""
    recipe, tokenizer = small_recipe(ROOT / "LICENSE", name=name), ByteTokenizer()
    denoiser = network(recipe, Vocabulary(tokenizer.vocab_size, len(labels)))
    torch.manual_seed(0)
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return Model(recipe, 7, denoiser.requires_grad_(False), tokenizer, labels)
