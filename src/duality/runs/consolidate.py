"""A checkpoint in parts (``training.checkpoint=sharded``) made into one of whole files.

What must hold: the tensors are the same, bit for bit; at every moment the checkpoint is there, in one of its forms.
"""

from __future__ import annotations

from pathlib import Path

from duality.files.lock import locked
from duality.files.progress import Reporter, silent
from duality.models.folder import read_recipe
from duality.training import checkpoint


def consolidate(folder: Path, step: int | None = None, report: Reporter = silent) -> Path:
    """Put the parts of a run's checkpoint together, the newest or that of a ``step``; it must fit into memory."""
    read_recipe(folder)  # which says what to do if it is no run
    checkpoints = folder / "checkpoints"
    with locked(folder, report):
        found = (
            checkpoint.newest_intact(checkpoints, report) if step is None else checkpoint.kept_step(checkpoints, step)
        )
        if found is None:
            raise ValueError(f"{folder} has no checkpoint yet: there is nothing to put together")
        if checkpoint.parts_of(found) is None:
            raise ValueError(f"{found} has whole files already: there is nothing to put together")
        saved = checkpoint.load(found)
        state = {name: value for name, value in saved.state.items() if name not in ("step", "parts")}
        return checkpoint.save(checkpoints, saved.step, saved.groups, state, keep=1 << 30)
