"""The weights that a run begins from: those of another run, or of a model alone, which has averaged ones only.

What must hold: what base.json records of them is what was read, by its checksum.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from duality.files.progress import Reporter
from duality.hub import package as pretrained_folder
from duality.hub.sources import ModelSource
from duality.models import folder as folders
from duality.models.base import checksums
from duality.models.load import parts_of_pretrained
from duality.training import checkpoint
from duality.training.adapters import merged
from duality.training.checkpoint import Tensors


@dataclass(frozen=True)
class Beginning:
    """Raw and averaged weights, and the record of where they come from."""

    model: Tensors
    ema: Tensors
    record: dict[str, object]


def is_model_alone(folder: Path) -> bool:
    """Whether a folder has a model alone, and no run."""
    return pretrained_folder.exists(folder) and not folders.exists(folder)


def checkpoint_of(source: ModelSource, report: Reporter) -> Path | None:
    """The checkpoint that a run is begun from; None for a model alone, which has none."""
    if is_model_alone(source.folder):
        return None
    path = checkpoint.newest_intact(source.folder / "checkpoints", report, ("model", "ema"))
    if path is None:
        raise ValueError(f"{source.place} has no checkpoint yet: there is nothing to begin from")
    return path


def beginning(source: ModelSource, path: Path | None) -> Beginning:
    """The weights of a model alone, or of the checkpoint of a run at ``path``, which was found to fit."""
    if path is None:
        parts = parts_of_pretrained(source, pretrained_folder.read_config(source.folder))
        record = {"run": parts.origin.place, "step": parts.step, "commit": parts.origin.commit}
        digest = parts.origin.sha256
        return Beginning(parts.tensors, parts.tensors, {**record, "model": digest, "ema": digest})
    saved, training = checkpoint.load(path, ("model", "ema")), folders.read_recipe(source.folder).training
    record = {"run": str(source.folder.resolve()), "step": saved.step, **checksums(path)}
    return Beginning(merged(saved.groups["model"], training), merged(saved.groups["ema"], training), record)
