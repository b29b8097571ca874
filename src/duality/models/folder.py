"""The run folder: its recipe, tokenizer and identity, where its numbers come from, and what it began from.

What a distillation or a finetuning began from: base.json, which names it by the checksums of its weights.

    {"run": "/runs/demo", "step": 2600, "model": <sha256>, "ema": <sha256>}       a distillation
    {"run": "hf:owner/name", "step": 2600, "commit": <commit>, "model": <sha256>, "ema": <sha256>}
    {"source": "/runs/demo", "step": 2600, "weights": <sha256>}                   a finetuning

The second is a distillation of a model alone (``package.py`` of the room ``hub``), whose one file of weights is both.
``weights`` is the checksum of the weights of the model that ``load`` gave for the source.

What must hold: a checkpoint is read with the tokenizer that it was trained with; a folder that is no run, or is
damaged, ends in one line that says what to do; the recipe is written last: a folder with a recipe is complete; whatever
can change a number is recorded (env.json), for which neither git nor a package that is not installed is needed.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import torch

from duality.files.atomic import write_atomically
from duality.files.json_files import MIB, read_json
from duality.hub import package
from duality.recipes import catalogue
from duality.recipes.config import Json
from duality.recipes.recipe import Recipe
from duality.tokenizers.library import load_tokenizer
from duality.tokenizers.tokenizer import FILE as TOKENIZER
from duality.tokenizers.tokenizer import Tokenizer
from duality.training import checkpoint
from duality.training.checkpoint import Checkpoint

RECIPE, CORPUS, BASE = "recipe.json", "corpus.json", "base.json"
ROUNDS, DATA, STREAM = "rounds", "data", "stream"

_MOST_IDENTITY_BYTES = 64 * MIB  # a shard has 64 million tokens and 67 bytes of checksum
_MOST_TOKENIZER_BYTES = 256 * MIB  # that of a vocabulary of 256 000 pieces has 35
_RESTORE_TOKENIZER = "put back the file that belongs to the run"


def exists(folder: Path) -> bool:
    """Whether a run has begun in ``folder``."""
    return (folder / RECIPE).is_file()


def read_recipe(folder: Path) -> Recipe:
    """The recipe of the run in ``folder``, or of a model alone."""
    path = folder / RECIPE
    if not exists(folder):
        if package.exists(folder):
            return package.PretrainedConfig.read(folder).recipe
        raise ValueError(f"{folder} is not a run: it has no {RECIPE}; give the folder that `duality train --out` wrote")
    data = cast(Json, read_json(path, MIB))
    try:
        return catalogue.from_json(data)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path}: {error}") from error


def list_rounds(folder: Path, recipe: Recipe) -> list[int]:
    """The rounds of a distillation that have ended, and 0, what it began from."""
    distillation = recipe.distillation
    return [step // distillation.round_steps for step in checkpoint.steps_saved(folder / ROUNDS) if distillation]


def write_facts(recipe: Recipe, folder: Path, tokenizer: Tokenizer, identity: Mapping[str, object]) -> None:
    """Write what a run is beside its weights: tokenizer, identity of its corpus, versions, recipe; the recipe last."""
    tokenizer.save(folder)
    write_atomically(folder / CORPUS, json.dumps(dict(identity), indent=1))
    write_atomically(folder / "env.json", json.dumps(_environment(), indent=1))
    write_recipe(recipe, folder)


def write_recipe(recipe: Recipe, folder: Path) -> None:
    """Write the recipe of a run."""
    write_atomically(folder / RECIPE, json.dumps(catalogue.to_json(recipe), indent=1))


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of the run or model in ``folder``, with all its parts; a wrong file is a ``ValueError``."""
    name = package.TOKENIZER if not exists(folder) and package.exists(folder) else TOKENIZER
    path = folder / name
    if path.exists():
        read_json(path, _MOST_TOKENIZER_BYTES, _RESTORE_TOKENIZER)
    found = load_tokenizer(folder, name)
    try:
        # the parts are made when they are first asked for, by a library that raises exceptions of any kind
        size, separator = found.vocab_size, found.separator
        if size > 0 and (separator is None or size > separator >= 0) and found.fingerprint:
            return found
        problem: object = f"{size} tokens, the end of a text is {separator}"
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        problem = error
    raise ValueError(f"{path} is damaged ({problem}): {_RESTORE_TOKENIZER}")


def check_tokenizer(saved: Checkpoint, tokenizer: Tokenizer, where: Path) -> None:
    """Refuse a checkpoint of the run ``where`` that was trained with another tokenizer."""
    size, fingerprint = saved.state.get("vocab_size"), saved.state.get("tokenizer")
    if type(size) is not int or not isinstance(fingerprint, str):
        raise ValueError(
            f"{saved.path / 'state.json'} does not say which tokenizer it was trained with: restore it from a backup"
        )
    if (size, fingerprint) != (tokenizer.vocab_size, tokenizer.fingerprint):
        raise ValueError(
            f"the checkpoint in {where} was trained with a vocabulary of {size} tokens "
            f"(fingerprint {fingerprint[:12]}), but the tokenizer there has {tokenizer.vocab_size} "
            f"({tokenizer.fingerprint[:12]}): put back the tokenizer.json that belongs to it"
        )


def read_identity(folder: Path) -> dict[str, Any]:
    """The checksums of the corpus (``Corpus.checksums``) with which the run began."""
    path = folder / CORPUS
    if not path.exists() and package.exists(folder):
        raise ValueError(f"{folder} does not say which text it was trained on: give another text (--data, data=)")
    found = read_json(path, _MOST_IDENTITY_BYTES)
    identity = {"labels": [], **found} if isinstance(found, dict) else {}  # a run may have none
    lists = [identity.get(name) for name in ("train", "validation", "labels")]
    texts = [identity.get("tokenizer"), identity.get("text", "")]  # not every corpus has a text
    texts += [item for each in lists for item in (each if isinstance(each, list) else [None])]
    if not all(isinstance(each, str) for each in texts):
        raise ValueError(
            f"{path} is damaged (it needs the checksums tokenizer, train and validation, and labels): restore it from "
            "a backup"
        )
    return identity


def read_base(folder: Path) -> dict[str, object] | None:
    """What the run in ``folder`` began from; None if it began from nothing, or does not say."""
    path = folder / BASE
    if not path.exists():
        return None
    record = read_json(path, MIB)
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        raise ValueError(f"{path} is damaged (it has no step): restore it from a backup, or delete it")
    return record


def package_versions() -> dict[str, str]:
    """The versions of packages that may change numbers, as far as they are installed."""
    found = {}
    for name in ("diffusion-duality", "torch", "numpy", "tokenizers", "safetensors"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _environment() -> dict[str, object]:
    """What a run is computed with: versions that may change numbers.

    The commit is that of this library's own repository, if it runs from one and git is there.
    """
    commit, root = None, Path(__file__).resolve().parents[3]
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    with suppress(OSError):
        if (root / ".git").exists():
            commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "packages": package_versions(),
        "commit": commit,
    }
