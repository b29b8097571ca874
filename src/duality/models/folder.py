"""The run folder: its recipe, the rounds it has kept, and the check that a recipe may be trained into it.

What must hold: nothing that is in a folder is overwritten; a run continues with the recipe that it began with, except
for settings that only change how it is computed or logged from there on, and for the place of its corpus; a start that
crashed can be started again.

What a distillation or a finetuning began from: base.json, which names it by the checksums of its weights.

    {"run": "/runs/demo", "step": 2600, "model": <sha256>, "ema": <sha256>}       a distillation
    {"run": "hf:owner/name", "step": 2600, "commit": <commit>, "model": <sha256>, "ema": <sha256>}
    {"source": "/runs/demo", "step": 2600, "weights": <sha256>}                   a finetuning

The second is a distillation of a model alone (``package.py`` of the room ``hub``), whose one file of weights is both.

``weights`` is the checksum of the weights of the model that ``load`` gave for the source. What must hold: a run
continues with the base that it began from, wherever that is now, and with no other.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from duality.data.corpus import Corpus
from duality.data.places import make_absolute
from duality.files.atomic import file_sha256, write_atomically
from duality.files.json_files import MIB, read_json
from duality.files.lock import LOCK
from duality.files.progress import Reporter
from duality.hub import package
from duality.models.provenance import corpus_identity, environment
from duality.recipes import catalogue
from duality.recipes.config import Json
from duality.recipes.longer import check_steps, longer, news
from duality.recipes.recipe import Recipe
from duality.tokenizers.tokenizer import Tokenizer
from duality.training import checkpoint
from duality.training.metrics import append_metrics, rewind_metrics

RECIPE = "recipe.json"
BASE = "base.json"
WEIGHTS = ("model", "ema")
ROUNDS = "rounds"
DATA = "data"
STREAM = "stream"

# What a start that crashed may leave before the recipe is written.
_BEFORE_RECIPE = ("tokenizer.json", "env.json", "corpus.json", "checkpoints", ROUNDS, DATA, STREAM, RECIPE, BASE, LOCK)

# What may change when a run continues: how it is optimised from here on and how it is logged, not what it is.
_CHANGEABLE = (
    "learning_rate",
    "clip",
    "warmup",
    "micro_batch",
    "precision",
    "recompute",
    "compile",
    "log_every",
    "eval_every",
    "save_every",
    "keep",
    "checkpoint",
)


def exists(folder: Path) -> bool:
    """Whether a run has begun in ``folder``."""
    return (folder / RECIPE).is_file()


def read_recipe(folder: Path) -> Recipe:
    """The recipe of the run in ``folder``, or of a model alone."""
    path = folder / RECIPE
    if not exists(folder) and package.exists(folder):
        return package.read_config(folder).recipe
    if not exists(folder):
        raise ValueError(f"{folder} is not a run: it has no {RECIPE}; give the folder that `duality train --out` wrote")
    data = read_json(path, MIB)
    try:
        return catalogue.from_json(cast(Json, data))
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path}: {error}") from error


def rounds_saved(folder: Path, recipe: Recipe) -> list[int]:
    """The rounds of a distillation that have ended, and 0, what it began from."""
    if recipe.distillation is None:
        return []
    saved = checkpoint.steps_saved(folder / ROUNDS) if (folder / ROUNDS).is_dir() else []
    return [step // recipe.distillation.round_steps for step in saved]


def saved_round(folder: Path, recipe: Recipe, number: int, groups: Sequence[str]) -> Path:
    """The checkpoint of the weights after round ``number``, whose ``groups`` of tensors are intact."""
    there = rounds_saved(folder, recipe)
    if recipe.distillation is None:
        raise ValueError(f"{folder} is no distillation: it has no rounds; leave the round out")
    if number not in there:
        raise ValueError(f"{folder} has no round {number}: there are {', '.join(map(str, there))}")
    path = folder / ROUNDS / f"step-{number * recipe.distillation.round_steps:08d}"
    problem = checkpoint.damage(path, groups)
    if problem is not None:
        raise ValueError(f"{path} is damaged ({problem}): restore it from a backup, or look at another round")
    return path


def check_folder(folder: Path, resume: bool) -> bool:
    """Whether a run exists in ``folder``; a new folder is made, and one that must not be trained into is refused."""
    if exists(folder):
        if not resume:
            raise ValueError(
                f"{folder} already holds a run: continue it with --resume (resume=True), or choose another --out (out=)"
            )
        return True
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "the run folder cannot be written", str(folder))
    foreign = sorted(path.name for path in folder.iterdir() if not _left_by_a_crash(path.name))
    if foreign:
        raise ValueError(f"{folder} holds other files ({', '.join(foreign[:3])}): choose an empty --out (out=)")
    return False


def check_no_distillation(folder: Path) -> None:
    """Refuse new weights where a distillation or a finetuning was begun and not completed: its weights are there."""
    if (folder / BASE).exists():
        kind, how = ("finetuning", "train --from") if is_finetuning(folder) else ("distillation", "distill")
        raise ValueError(
            f"{folder} holds the beginning of a {kind}: complete it with `duality {how}`, choose another --out (out=), "
            "or delete it"
        )


def _left_by_a_crash(name: str) -> bool:
    """Whether a start writes a file or folder of this name; ".corpus.json.123" is one that was being written."""
    return name in _BEFORE_RECIPE or (name.startswith(".") and name[1:].startswith(_BEFORE_RECIPE))


def open_folder(recipe: Recipe, folder: Path, resume: bool, may_be_longer: bool = False) -> Recipe | None:
    """The recipe of the run that is there, which may go on as ``recipe``; None if there is none yet.

    With ``may_be_longer`` it may have another number of steps, or of rounds.
    """
    if not check_folder(folder, resume):
        return None
    before = read_recipe(folder)
    changeable = (*_CHANGEABLE, *(("steps",) if may_be_longer else ()))
    # The corpus may be in another place: its tokens are compared by corpora.corpus_of_run.
    may = ("generation.", "parallel.", "data.corpus:", *(f"training.{name}:" for name in changeable))
    if may_be_longer:
        may = (*may, "distillation.rounds:", "summary:")
    changes = catalogue.differences(before, longer(before, recipe, 0))
    fixed = [change for change in changes if not change.startswith(may)]
    if fixed:
        raise ValueError(
            f"{folder} was started with another recipe ({'; '.join(fixed[:4])}): a run continues as it began, but for "
            f"generation, parallel and training.{{{', '.join(changeable)}}}; leave the changed flags out, or choose "
            "another --out (out=)"
        )
    check_steps(recipe, checkpoint.latest_step(folder / "checkpoints"))
    return before


def continued(before: Recipe, recipe: Recipe, folder: Path, step: int, report: Reporter) -> Recipe:
    """The recipe with which a run that was ``before`` goes on from ``step``; changes are recorded."""
    recipe = longer(before, recipe, step)
    changes = catalogue.differences(before, recipe)
    if changes:
        rewind_metrics(folder, step)  # a line that was cut short by a crash would swallow the next one
        append_metrics(folder, {"step": step, "changed": changes})
        write_recipe(recipe, folder)
    if recipe.training.steps != before.training.steps:
        report(news(before, recipe, step))
    return recipe


def create(recipe: Recipe, folder: Path, corpus: Corpus) -> None:
    """Write what a run begins with; the recipe last."""
    write_facts(recipe, folder, corpus.tokenizer, corpus_identity(corpus))


def write_facts(recipe: Recipe, folder: Path, tokenizer: Tokenizer, identity: dict[str, object]) -> None:
    """Write what a run is beside its weights: tokenizer, identity of its corpus, versions, recipe; the recipe last."""
    tokenizer.save(folder)
    write_atomically(folder / "corpus.json", json.dumps(identity, indent=1))
    write_atomically(folder / "env.json", json.dumps(environment(), indent=1))
    write_recipe(recipe, folder)


def write_recipe(recipe: Recipe, folder: Path) -> None:
    """Write the recipe of a run."""
    write_atomically(folder / RECIPE, json.dumps(catalogue.to_json(recipe), indent=1))


def with_corpus(recipe: Recipe, corpus: str | Path) -> Recipe:
    """The recipe on another corpus; a path is made absolute so that the run can be resumed from anywhere."""
    if not str(corpus).strip() or corpus == Path():  # which is the present folder
        raise ValueError("the corpus is empty: give a file, a folder, or a name that `duality data list` shows")
    return replace(recipe, data=replace(recipe.data, corpus=make_absolute(corpus)))


def with_column(recipe: Recipe, column: str | None) -> Recipe:
    """The recipe with the text under another key or in another column, if one is given."""
    return recipe if column is None else replace(recipe, data=replace(recipe.data, column=column))


# --- what a run began from


def write_base(folder: Path, record: Mapping[str, object]) -> None:
    """Record in ``folder`` what it begins from (``start.Beginning``)."""
    write_atomically(folder / BASE, json.dumps(dict(record), indent=1))


def write_source(folder: Path, source: str, step: int, weights: str) -> None:
    """Record in ``folder`` that it begins from a model: where that is, its step and the checksum of its weights."""
    write_atomically(folder / BASE, json.dumps({"source": source, "step": step, "weights": weights}, indent=1))


def read_base(folder: Path) -> dict[str, object] | None:
    """What the run in ``folder`` began from; None if it began from nothing, or does not say."""
    path = folder / BASE
    if not path.exists():
        return None
    record = read_json(path, MIB)
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        raise ValueError(f"{path} is damaged (it has no step): restore it from a backup, or delete it")
    return record


def is_finetuning(folder: Path) -> bool:
    """Whether the run in ``folder`` began from a model whose training it continues on other data."""
    record = read_base(folder)
    return record is not None and "weights" in record


def weights_checksum(model: nn.Module) -> str:
    """The sha256 of the names and numbers of a model's weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.named_parameters(), key=lambda each: each[0]):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def checksums(path: Path) -> dict[str, str]:
    """The checksums of the weights of a checkpoint, as its manifest has them."""
    found = {group: checkpoint.checksum_of(path, group) for group in WEIGHTS}
    return {group: value for group, value in found.items() if value is not None}


def check_base(folder: Path, name: str, base: Path, report: Reporter) -> None:
    """Refuse to continue the distillation ``name`` in ``folder`` with another base than it began from."""
    record = read_base(folder)
    if record is None:
        report(f"{folder} does not record what it began from (an older version made it): {base} is not compared")
        return
    if is_finetuning(folder):
        raise ValueError(f"{folder} is a finetuning of {record.get('source')}, no distillation: choose another --out")
    began = {group: record.get(group) for group in WEIGHTS}
    kept = base / "checkpoints" / f"step-{record['step']:08d}"
    where = f"step {record['step']} of {record.get('run')}"
    alone = base / package.WEIGHTS
    if kept.is_dir() or alone.is_file():
        if (dict.fromkeys(WEIGHTS, file_sha256(alone)) if alone.is_file() else checksums(kept)) == began:
            return
        found = f"the weights of {base} at that step are others"
    elif record.get("run") == str(base.resolve()):
        report(f"{folder} began from {where}, which is not kept any more and is not compared")
        return
    else:
        found = f"{base} has no checkpoint of that step"
    raise ValueError(
        f"{folder} is a distillation of {where}, and {found}: give the run that it began from, or choose another "
        f"--out (out=) for a new distillation; `duality train {name} --out {folder} --resume` "
        "continues it without its base"
    )
