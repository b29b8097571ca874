"""The ``duality`` command: typed functions that call the library and print what it returns.

    main       parses the arguments, runs a command, turns an error into one line and an exit code
    options    kinds of arguments that commands share
    console    messages, progress and tables
    watch      the live view of sampling
    train      train, distill, plan             sample     sample, trace
    evaluate   eval, compare                    quality    quality, plot
    data       data                             lists      recipes, runs, consolidate
    exchange   import, export, publish          studio     studio
    papers     reproduce, variance, the tables of the paper

``COMMANDS`` are the commands by name; each is a typed function, whose signature and docstring are its help. A command
is imported when it is called, and modules that import torch are imported inside it, so that ``--help`` is immediate.
"""

import re
from pathlib import Path

from duality.registry import Registry

_HOMES = {
    "train": "train:train",
    "distill": "train:distill",
    "eval": "evaluate:evaluate",
    "sample": "sample:sample",
    "quality": "quality:quality",
    "plot": "quality:plot",
    "compare": "evaluate:compare",
    "plan": "train:plan",
    "consolidate": "lists:consolidate",
    "import": "exchange:import_model",
    "export": "exchange:export_model",
    "publish": "exchange:publish",
    "variance": "papers:variance",
    "reproduce": "papers:reproduce",
    "runs": "lists:runs",
    "recipes": "lists:recipes",
    "data": "data:data",
    "studio": "studio:studio",
    "trace": "sample:trace",
}

COMMANDS = Registry("command", {name: f"duality.cli.{home}" for name, home in _HOMES.items()})

# Those whose work is divided over the processes that torchrun starts.
DIVIDED = ("train", "distill", "eval", "sample", "quality", "compare")


def read_summary(name: str) -> str:
    """The first line of a command's help, read from its source: no command is imported for the list of all."""
    module, _, function = _HOMES[name].partition(":")
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    found = re.search(rf'^def {function}\(.*?"""(.*?)\n', source, re.DOTALL | re.MULTILINE)
    return "" if found is None else found[1]
