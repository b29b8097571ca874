"""The commands by name; each is a typed function, whose signature and docstring are its help."""

from __future__ import annotations

from collections.abc import Callable

from duality.cli.compare import compare
from duality.cli.evaluate import evaluate
from duality.cli.lists import data, recipes
from duality.cli.quality import plot, quality
from duality.cli.sample import sample
from duality.cli.train import distill, train

COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "distill": distill,
    "eval": evaluate,
    "sample": sample,
    "quality": quality,
    "plot": plot,
    "compare": compare,
    "recipes": recipes,
    "data": data,
}
