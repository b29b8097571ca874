"""The commands by name; each is a typed function, whose signature and docstring are its help."""

from __future__ import annotations

from collections.abc import Callable

from duality.cli.compare import compare
from duality.cli.consolidate import consolidate
from duality.cli.data import data
from duality.cli.evaluate import evaluate
from duality.cli.exchange import export_model, import_model
from duality.cli.lists import recipes
from duality.cli.plan import plan
from duality.cli.publish import publish
from duality.cli.quality import plot, quality
from duality.cli.reproduce import reproduce
from duality.cli.runs import runs
from duality.cli.sample import sample
from duality.cli.studio import studio
from duality.cli.trace import trace
from duality.cli.train import distill, train
from duality.cli.variance import variance

COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "distill": distill,
    "eval": evaluate,
    "sample": sample,
    "quality": quality,
    "plot": plot,
    "compare": compare,
    "plan": plan,
    "consolidate": consolidate,
    "import": import_model,
    "export": export_model,
    "publish": publish,
    "variance": variance,
    "reproduce": reproduce,
    "runs": runs,
    "recipes": recipes,
    "data": data,
    "studio": studio,
    "trace": trace,
}

# Those whose work is divided over the processes that torchrun starts.
DIVIDED = ("train", "distill", "eval", "sample", "quality", "compare")
