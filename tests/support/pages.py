"""Blocks of code in the pages of the documentation, and how a test runs them on a small budget.

A guide is run from top to bottom in one folder, as its reader would: its commands, and its Python in one namespace. A
block of Python whose first line is ``# NAME.py`` is saved under that name. A block without a language that follows is
what the one before it prints: ``compare_output`` compares it with what was printed. What must hold: every command is
run or, where it needs a network, parsed with all its flags; what is made smaller for a test is stated here, by rule.
"""

from __future__ import annotations

import functools
import re
import runpy
import shlex
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from duality.cli import COMMANDS
from duality.cli.main import CONFIG, _spread, main

# Fields of a recipe that make a training take a second; a guide's own assignments come before them and stay.
TINY = {"backbone": "nano", "training.batch_size": "4", "training.warmup": "1", "training.eval_every": "0"}
# Values of flags that stand for time: at most so much.
AT_MOST = {"--steps": 4, "--num": 4, "--round-steps": 2, "--rounds": 2, "--draws": 1}
BLOCK = re.compile(r"^```(bash|python|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A block without a language that begins like this is commands that the page shows and nobody is to run now.
_SHOWN = ("duality ", "torchrun ", "pip ", "#!", "$ ")
_NUMBER = r"[-+]?\d([\d,]*\d)?(\.\d+)?(e[-+]?\d+)?|\b(nan|inf)\b|–"
_FOLDER = r"(?<!\S)/\S+/"  # of a file that is named by its whole path
_INTERVAL = r"# \[#, #\]"  # which a table has where there are enough samples
_SAMPLE = "--- sample "
_LEFT_OUT = "…"
# Lines that a page need not show: of a training of two steps, of a corpus that is not in the cache yet, or that is
# given as a file in place of one that would have to be fetched.
MORE = (
    "^no better than the frequencies of tokens",
    "^token frequencies alone give",
    "^the tokenizer is ",
    r"^the corpus of \S+ is read at \S*/instead-of-",
)


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in one language."""
    return [code for kind, code in BLOCK.findall(page) if kind == language]


def commands(block: str) -> list[str]:
    """The commands of a block of a shell, without comments."""
    joined = block.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def templates(text: str, free: Mapping[str, str]) -> list[str]:
    """The lines of an output without what differs from run to run: numbers, widths, folders, and what is ``free``.

    Lines that say the same as those before them but for that, as the rows of a table do, are left out; so is the line
    after the title of a sample, which a model has written.

    >>> templates("step 3,  0.5 nats\\nstep 4,  -1e-3 nats\\n--- sample 1 of 2\\nAbc\\nfrom /home/me/a.txt", {})
    ['step #, # nats', '--- sample # of #', 'from /.../a.txt']
    >>> templates("a 1\\nb 1\\na 2\\nb 2", {})
    ['a #', 'b #']
    """
    found: list[str] = []
    written = False
    for line in text.splitlines():
        if written:
            written = False
            continue
        written = line.startswith(_SAMPLE)
        for pattern, replacement in {_FOLDER: "/.../", **free, _NUMBER: "#", _INTERVAL: "#"}.items():
            line = re.sub(pattern, replacement, line)
        if line.strip():
            found.append(" ".join(line.split()))
        for rows in range(1, len(found) // 2 + 1):
            if found[-rows:] == found[-2 * rows : -rows]:
                del found[-rows:]
                break
    return found


def without_texts(printed: str) -> str:
    """What the command `sample` prints, with a line in place of each text, which may have lines of its own."""
    titles = re.findall(rf"^{_SAMPLE}.*$", printed, re.MULTILINE)
    return printed.partition(_SAMPLE)[0] + "".join(f"{title}\n(its text)\n" for title in titles)


def compare_output(shown: str, printed: str, free: Mapping[str, str], more: Collection[str] = ()) -> None:
    """Refuse what a page shows if the commands print something else: other words, another order, more lines or fewer.

    A line "…" of the page stands for any number of lines. ``more`` are patterns of lines that only the test prints.
    """
    wanted, lines = templates(shown, free), templates(printed, free)
    lines = [line for line in lines if line in wanted or not any(re.search(each, line) for each in more)]
    rest, gap = iter(lines), False
    for line in wanted:
        if line == _LEFT_OUT:
            gap = True
            continue
        for found in rest:
            if found == line:
                break
            assert gap, f"the page shows {line!r}, and this is printed: {found!r}"
        else:
            raise AssertionError(f"the page shows {line!r}, and that is not printed; what is:\n{printed}")
        gap = False
    assert gap or not (left := list(rest)), f"the page does not show what is printed: {left}"


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
    would have to be fetched. ``read`` gives what was printed since it was called before; ``free`` are patterns of what
    a model or a text decides in an output, and what stands for it. ``used`` collects which rules were needed: one that
    is not needed any more is found. ``compared`` and ``passed_over`` are the first lines of the outputs that were
    compared, and of those that were not, because what prints them was not run.
    """

    instead: Mapping[str, list[str] | None] = field(default_factory=dict)
    smaller: Mapping[str, str] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    tiny: Mapping[str, str] = field(default_factory=lambda: TINY)
    used: set[str] = field(default_factory=set)
    names: dict[str, object] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)
    read: Callable[[], str] = lambda: ""
    free: Mapping[str, str] = field(default_factory=dict)
    compared: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)

    def follow(self, page: str) -> int:
        """Run all blocks of code, and compare the outputs behind them; the number of blocks of code."""
        printed: str | None = None
        found = BLOCK.findall(page)
        for language, code in found:
            if language:
                printed = self.run_block(language, code)
            elif not code.startswith(_SHOWN):
                (self.passed_over if printed is None else self.compared).append(code.splitlines()[0])
                if printed is not None:
                    self.used |= {pattern for pattern in self.free if re.search(pattern, code, re.MULTILINE)}
                    compare_output(code, printed, self.free, MORE)
                printed = None
        rules = {*self.instead, *self.smaller, *self.free}
        assert self.used == rules, f"rules of the test that the page does not need: {rules - self.used}"
        return sum(1 for language, _ in found if language)

    def run_block(self, language: str, code: str) -> str | None:
        """Run a block of code; what it prints, None if none of its commands was run."""
        self.read()
        if language == "python":
            self.run_python(code)
            return self.read()
        printed: list[str] = []
        was_run = False
        for command in commands(code):
            was_run |= self.run_command(command)
            printed.append(without_texts(self.read()) if command.startswith("duality sample ") else self.read())
        return "".join(printed) if was_run else None

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

    def run_command(self, command: str) -> bool:
        """Run a command of a shell on a small budget; whether it was run as it stands there, but for its budget."""
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
        return words[0] == "python" or (words[0] == "duality" and rule is None)

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
