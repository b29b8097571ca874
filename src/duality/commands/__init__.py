"""The commands, a typed function each, by the name they are called with. A new one: its function, and its name here."""

from __future__ import annotations

from collections.abc import Callable

from duality.commands.compare import compare
from duality.commands.evaluate import evaluate
from duality.commands.lists import data, recipes
from duality.commands.quality import plot, quality
from duality.commands.sample import sample
from duality.commands.train import distill, train

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
