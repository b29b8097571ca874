"""Blocks of code in the pages of the documentation, and how a test runs them on a small budget.

A guide is run from top to bottom in one folder, as its reader would: its commands, and its Python in one namespace. A
block of Python whose first line is ``# NAME.py`` is saved under that name. What must hold: every command is run or,
where it needs a network, parsed with all its flags; what is made smaller for a test is stated here, by rule.
"""

from __future__ import annotations

import functools
import re
import runpy
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from duality.cli import COMMANDS
from duality.cli.main import CONFIG, _spread, main

# Fields of a recipe that make a training take a second; a guide's own assignments come before them and stay.
TINY = {"backbone": "nano", "training.batch_size": "4", "training.warmup": "1", "training.eval_every": "0"}
# Values of flags that stand for time: at most so much.
AT_MOST = {"--steps": 4, "--num": 4, "--round-steps": 2, "--rounds": 2, "--draws": 1}
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in one language."""
    return [code for kind, code in BLOCK.findall(page) if kind == language]


def commands(block: str) -> list[str]:
    """The commands of a block of a shell, without comments."""
    joined = block.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def parse(arguments: list[str]) -> None:
    """Refuse a command or a flag that does not exist; nothing is run."""

    def idle(command: Callable[..., object]) -> Callable[..., int]:
        @functools.wraps(command)
        def nothing(*_values: object, **_flags: object) -> int:
            return 0

        return nothing

    idle_commands, words = {name: idle(command) for name, command in COMMANDS.items()}, _spread(arguments)
    assert tyro.extras.subcommand_cli_from_dict(idle_commands, prog="duality", args=words, config=CONFIG) == 0


def at_most(arguments: list[str]) -> list[str]:
    """The arguments with fewer steps, samples, rounds and draws; a list of numbers (8,16) keeps its first two."""
    smaller = list(arguments)
    for place, (flag, value) in enumerate(zip(arguments, arguments[1:])):
        if flag in AT_MOST and re.fullmatch(r"[\d,]+", value):
            numbers = dict.fromkeys(
                min(int(number), AT_MOST[flag] - late) for late, number in enumerate(value.split(",")[:2])
            )
            smaller[place + 1] = ",".join(map(str, numbers))
    return smaller


@dataclass
class Follower:
    """Runs a page's blocks in the current folder.

    ``instead`` are commands that are run in another form, by their first words; None means that they are only parsed
    or, if they are no commands of duality, left out because the test has prepared what they make. ``smaller`` are texts
    of Python blocks that are replaced. ``data`` is what a training without ``--data`` gets in place of a corpus that
    would have to be fetched. ``used`` collects which rules were needed: one that is not needed any more is found.
    """

    instead: Mapping[str, list[str] | None] = field(default_factory=dict)
    smaller: Mapping[str, str] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    tiny: Mapping[str, str] = field(default_factory=lambda: TINY)
    used: set[str] = field(default_factory=set)
    names: dict[str, object] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)

    def follow(self, page: str) -> int:
        """Run all blocks; the number of them."""
        found = BLOCK.findall(page)
        for language, code in found:
            if language == "python":
                self.run_python(code)
            else:
                for command in commands(code):
                    self.run_command(command)
        assert self.used == {*self.instead, *self.smaller}, "a rule of the test is not needed by the page"
        return len(found)

    def run_python(self, code: str) -> None:
        """Run a block, or save it if its first line is a file's name."""
        for text, replacement in self.smaller.items():
            if text in code:
                self.used.add(text)
                code = code.replace(text, replacement)
        named = re.match(r"# (\w+\.py)\n", code)
        if named:
            Path(named.group(1)).write_text(code, encoding="utf-8")
        else:
            exec(compile(code, "a block of the page", "exec"), self.names)

    def run_command(self, command: str) -> None:
        """Run a command of a shell on a small budget."""
        rule = next((words for words in self.instead if command.startswith(words)), None)
        if rule is not None:
            self.used.add(rule)
        words = shlex.split(command, comments=True)
        while re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # variables of the environment
            words.pop(0)
        if words[0] == "torchrun":
            words = self.without_torchrun(words[1:])
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
        elif words[0] != "duality":
            assert rule is not None, f"no rule for: {command}"
            for each in self.instead[rule] or []:
                subprocess.run(each, shell=True, check=True)
        else:
            parse(words[1:])
            if rule is None:
                assert main(self.on_small_budget(words[1:])) == 0, command
            else:
                for each in self.instead[rule] or []:
                    assert main(shlex.split(each)) == 0, each

    def tiny_fields(self, arguments: list[str]) -> list[str]:
        """Assignments that make a training small; a finetuning has the network and the tokens of its source."""
        given = {word.partition("=")[0] for word in arguments}
        free = {name for name in self.tiny if "--from" not in arguments or name.startswith("training.")}
        return [f"{name}={value}" for name, value in self.tiny.items() if name in free - given]

    def fewer_steps(self, arguments: list[str]) -> None:
        """Four steps; two more each time that the same run goes on."""
        out = arguments[arguments.index("--out") + 1]
        self.trained[out] = self.trained.get(out, 2) + 2
        if "--steps" in arguments:
            arguments[arguments.index("--steps") + 1] = str(self.trained[out])

    @staticmethod
    def without_torchrun(words: list[str]) -> list[str]:
        """The command that torchrun would start, for one process, which divides no weights; the flags must exist."""
        from torch.distributed.run import get_args_parser

        parsed = get_args_parser().parse_args(words)
        assert parsed.module, "torchrun starts a module: -m duality"
        assert parsed.training_script == "duality"
        return ["duality", *(word for word in parsed.training_script_args if word != "parallel.strategy=fsdp")]

    def on_small_budget(self, arguments: list[str]) -> list[str]:
        """The arguments of a command, with tiny trainings and few samples."""
        small = at_most(arguments)
        if small[0] in ("train", "compare"):
            self.fewer_steps(small)
            if "--data" not in small and "--resume" not in small:
                small += self.data
            if "--resume" not in small:
                small += ["--set", *self.tiny_fields(small)]
        if small[0] == "quality" and "--judge" not in small:
            small += ["--judge", "none"]
        return small
