"""The commands `import` and `export`: models that others have released, and runs in their layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from duality.cli.common import Folder, KeptStep

Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
MethodName = Literal["duo", "udlm", "mdlm", "sedd", "d3pm", "ar"]


def import_model(
    source: Source,
    /,
    out: Path,
    method: MethodName | None = None,
    tokenizer: str | None = None,
    heads: int | None = None,
    length: int | None = None,
    kept_step: KeptStep = None,
) -> int:
    """Make a run of a model that others have trained and released.

    Args:
        source: a checkpoint (.ckpt), a folder with config.json and weights, or hf:OWNER/NAME[@REVISION].
        out: the folder of the new run.
        method: what the model is, if the file does not say it.
        tokenizer: its tokenizer, if it is not that of GPT-2 or BERT: the folder of a run, a tokenizer.json,
            hf:OWNER/NAME, or a name such as bytes.
        heads: the heads of its attention, if the file does not say it.
        length: the tokens of a sequence, if the file does not say it.
        kept_step: after how many steps of training the weights are, if the file does not say it.
    """
    from duality.cli.console import say
    from duality.runs.importing import Wanted, import_released

    made = import_released(source, out, Wanted(method, tokenizer, heads, length, kept_step), say)
    print(f"{made} is a run: duality sample {made}")
    return 0


def export_model(
    run: Folder, /, out: Path, layout: Literal["duo-hf", "duo-ckpt"] = "duo-hf", kept_step: KeptStep = None
) -> int:
    """Write the weights of a run in the layout of the released models.

    Args:
        run: the run folder.
        out: the new folder (duo-hf), or the new file (duo-ckpt), whose name ends with .ckpt.
        layout: a folder with config.json and model.safetensors, which holds the averaged weights; or a checkpoint of
            Lightning, which holds the raw weights too.
        kept_step: the checkpoint of this training step instead of the newest.
    """
    from duality.cli.console import say
    from duality.runs.exporting import export_run

    print(f"{export_run(run, out, layout, kept_step, say)} is written in the layout {layout}")
    return 0
