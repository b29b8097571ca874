"""The command `consolidate`: a checkpoint that many processes wrote in parts becomes one of whole files."""

from __future__ import annotations

from duality.cli.common import Folder, KeptStep


def consolidate(run: Folder, /, kept_step: KeptStep = None) -> int:
    """Put the parts of a checkpoint together that were saved with training.checkpoint=sharded.

    Args:
        run: the run folder.
        kept_step: the checkpoint of this training step instead of the newest.
    """
    from duality.cli.console import say
    from duality.runs.consolidate import consolidate as put_together

    print(f"{put_together(run, kept_step, say)} has whole files now")
    return 0
