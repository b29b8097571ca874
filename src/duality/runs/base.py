"""What a distillation began from: base.json, which names the base by the checksums of its weights.

    {"run": "/runs/demo", "step": 2600, "model": <sha256>, "ema": <sha256>}
    {"run": "hf:owner/name", "step": 2600, "commit": <commit>, "model": <sha256>, "ema": <sha256>}

The second is a distillation of a model alone (``pretrained_folder.py``), whose one file of weights is both.

What must hold: a distillation continues with the base that it began from, wherever that is now, and with no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from duality.data.files import file_sha256, write_atomically
from duality.data.jsonfiles import MIB, read_json
from duality.protocols import Reporter
from duality.runs import pretrained_folder
from duality.training import checkpoint

BASE = "base.json"
WEIGHTS = ("model", "ema")


def write_base(folder: Path, record: Mapping[str, object]) -> None:
    """Record in ``folder`` what it begins from (``beginnings.Beginning``)."""
    write_atomically(folder / BASE, json.dumps(dict(record), indent=1))


def checksums(path: Path) -> dict[str, str]:
    """The checksums of the weights of a checkpoint, as its manifest has them."""
    found = {group: checkpoint.checksum_of(path, group) for group in WEIGHTS}
    return {group: value for group, value in found.items() if value is not None}


def check_base(folder: Path, name: str, base: Path, report: Reporter) -> None:
    """Refuse to continue the distillation ``name`` in ``folder`` with another base than it began from."""
    path = folder / BASE
    if not path.exists():
        report(f"{folder} does not record what it began from (an older version made it): {base} is not compared")
        return
    record = read_json(path, MIB)
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        raise ValueError(f"{path} is damaged (it has no step): restore it from a backup, or delete it")
    began = {group: record.get(group) for group in WEIGHTS}
    kept = base / "checkpoints" / f"step-{record['step']:08d}"
    where = f"step {record['step']} of {record.get('run')}"
    alone = base / pretrained_folder.WEIGHTS
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
