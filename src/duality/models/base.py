"""What a distillation or a finetuning began from: base.json, which names it by the checksums of its weights.

    {"run": "/runs/demo", "step": 2600, "model": <sha256>, "ema": <sha256>}       a distillation
    {"run": "hf:owner/name", "step": 2600, "commit": <commit>, "model": <sha256>, "ema": <sha256>}
    {"source": "/runs/demo", "step": 2600, "weights": <sha256>}                   a finetuning

The second is a distillation of a model alone (``package.py``), whose one file of weights is both.

``weights`` is the checksum of the weights of the model that ``load`` gave for the source. What must hold: a run
continues with the base that it began from, wherever that is now, and with no other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from duality.files.atomic import file_sha256, write_atomically
from duality.files.json_files import MIB, read_json
from duality.files.progress import Reporter
from duality.hub import package
from duality.training import checkpoint

BASE = "base.json"
WEIGHTS = ("model", "ema")


def write_base(folder: Path, record: Mapping[str, object]) -> None:
    """Record in ``folder`` what it begins from (``beginnings.Beginning``)."""
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
