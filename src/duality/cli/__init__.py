"""The ``duality`` command: typed functions that call the library and print what it returns.

    main       parses the arguments, runs a command, turns an error into one line and an exit code
    options    kinds of arguments that commands share
    console    messages, progress and tables
    watch      the live view of sampling
    train      train, distill, plan                 sample     sample, trace, studio
    evaluate   eval, compare, quality, plot         data       data
    runs       runs, consolidate, import, export, publish, doctor
    papers     recipes, reproduce, variance

``COMMANDS`` are the commands by name; each is a typed function, whose signature and docstring are its help. A command
is imported when it is called, and modules that import torch are imported inside it, so that ``--help`` is immediate.
"""

from duality.registry import Registry

HOMES = {
    "train": "train:train",
    "distill": "train:distill",
    "eval": "evaluate:evaluate",
    "sample": "sample:sample",
    "quality": "evaluate:quality",
    "plot": "evaluate:plot",
    "compare": "evaluate:compare",
    "plan": "train:plan",
    "consolidate": "runs:consolidate",
    "import": "runs:import_model",
    "export": "runs:export_model",
    "publish": "runs:publish",
    "variance": "papers:variance",
    "reproduce": "papers:reproduce",
    "runs": "runs:runs",
    "recipes": "papers:recipes",
    "data": "data:data",
    "doctor": "runs:doctor",
    "studio": "sample:studio",
    "trace": "sample:trace",
}

COMMANDS = Registry("command", {name: f"duality.cli.{home}" for name, home in HOMES.items()})

# Those whose work is divided over the processes that torchrun starts.
DIVIDED = ("train", "distill", "eval", "sample", "quality", "compare")
