"""Damaged files: each is refused in one line, or read as what it says; nothing ends with a signal, hangs or is left.

    python tests/fuzz_files.py 1000               a twelfth of the files of each kind, damaged as seed 0 says
    python tests/fuzz_files.py 1000 7 ckpt run    two of the kinds alone, as seed 7 says

    stream, feather, parquet     tables, read by ``data show``
    store                        prepared tokens, read by ``data show``
    safetensors, parts, .ckpt    released models, read by ``import``
    published                    a model alone, read by ``eval``
    run, distilled               run folders, read by ``sample`` and ``eval``
    trace, quality               recordings and measures, drawn by ``trace --html`` and ``plot``

A case copies a small valid folder, damages one file of it (flipped bits, a cut, a part twice, zeros, another length or
number, exchanged blocks or members) and gives it to the command in a process with bounded memory. Allowed are:

    refused      exit code 2, one line, and no other file than before
    same         the result of the undamaged file
    other        another result, where no checksum is kept that could tell
    older        the result of an older checkpoint, and a line that says that the newest is damaged

Everything else is a fault: a signal, an internal error, a hang, memory over the bound, more than a line, leftovers, or
another result although a checksum says that the file is damaged. The test suite runs a few files.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib.pyplot  # noqa: F401, imported once for all processes
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import torch
from safetensors.torch import save_file
from support import session
from support.damages import damaged, repack_member
from support.released import (
    HF_CONFIG,
    numbers_folder,
    prefixed,
    reference_tensors,
    write_checkpoint,
    write_folder,
)
from support.runs import ROOT, quiet, small_recipe
from support.sweep_rows import REAL, row

from duality.cli import COMMANDS
from duality.cli.main import main
from duality.data.corpus import prepare
from duality.files.atomic import json_text
from duality.models.model import load
from duality.recipes.derive import derive_distillation
from duality.recipes.recipe import Recipe
from duality.tokenizers.specs import Bytes
from duality.training.distillation import DCD

PATIENCE = 30  # seconds
MEMORY = 2 << 30  # bytes of addresses beyond those that the process begins with; threads and Arrow reserve some
LONGEST_LINE = 1000
OUT = "made"  # what the commands write
ERROR = "duality: error: "
ALLOWED = ("refused", "same", "other", "older")
_OLDER = "; trying the one before it"
Outcome = tuple[str, str]  # its kind, and for a fault what was seen


# --- the files


@dataclass(frozen=True)
class Kind:
    """A folder, the commands that read it, and the files in it that are damaged; ``checked`` ones have a checksum."""

    make: Callable[[Path], object]
    commands: tuple[str, ...]
    files: str
    checked: str = "$^"


def make_table(folder: Path, name: str) -> None:
    """Texts and labels, of which one batch has a dictionary."""
    texts = [f"Document {number} has some words, and more of them: {'word ' * number}" for number in range(20)]
    labels = pyarrow.array(["good" if number % 2 else "bad" for number in range(20)]).dictionary_encode()
    table = pyarrow.table({"text": texts, "label": labels, "other": [[number] for number in range(20)]})
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(table, folder / name, row_group_size=8, write_page_checksum=True)
    elif name.endswith(".feather"):
        pyarrow.feather.write_feather(table, folder / name, chunksize=8)
    else:
        with pyarrow.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=8)


def make_released(folder: Path, layout: str) -> None:
    """A released model of 37 tokens, and a tokenizer for it."""
    tensors = reference_tensors(ROOT / "tests" / "golden")
    numbers_folder(folder / "numbers")
    if layout == "ckpt":
        write_checkpoint(folder / "model.ckpt", tensors)
        return
    write_folder(folder / "model", prefixed(tensors), HF_CONFIG)
    if layout == "parts":
        (folder / "model" / "model.safetensors").unlink()
        names, halves = sorted(tensors), ("model-1.safetensors", "model-2.safetensors")
        places = {f"backbone.{name}": halves[number % 2] for number, name in enumerate(names)}
        for half in halves:
            part = {name: tensors[name.removeprefix("backbone.")] for name, at in places.items() if at == half}
            save_file({name: value.contiguous() for name, value in part.items()}, folder / "model" / half)
        (folder / "model" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def make_run(folder: Path) -> None:
    """A run of two steps with one checkpoint."""
    session.train(_recipe("training.keep=1"), folder / "run", report=quiet)


def _recipe(*assignments: str) -> Recipe:
    return small_recipe(ROOT / "LICENSE", "training.steps=2", "data.length=16", *assignments)


def make_distilled(folder: Path) -> None:
    """A distillation of it."""
    recipe = derive_distillation(_recipe(), DCD(rounds=1, round_steps=2, delta=1 / 16), 2)
    session.distill(folder.parent / "run" / "run", recipe, folder / "run", report=quiet)


def make_published(folder: Path) -> None:
    """Its model alone."""
    load(folder.parent / "run" / "run", quiet, "cpu").save_pretrained(folder / "model")


def make_trace(folder: Path) -> None:
    """The trace of a generation of it."""
    flags = ("--num", "2", "--steps", "4", "--length", "16", "--trace", str(folder / "trace.json"))
    assert main(["sample", str(folder.parent / "run" / "run"), *flags]) == 0


def make_store(folder: Path) -> None:
    """The prepared tokens of a text, as they stand in the cache."""
    store = prepare(ROOT / "LICENSE", Bytes(), cache=folder / "cache").train.folder.parent
    store.rename(folder / store.name)
    shutil.rmtree(folder / "cache")


def make_quality(folder: Path) -> None:
    """Measures of two models at two numbers of steps."""
    rows = [row(label, steps, 40.0 - steps, 5.0) for label in ("duo", "mdlm") for steps in (4, 8)]
    content = {name: [each.to_json() for each in some] for name, some in (("rows", rows), ("references", [REAL]))}
    (folder / "quality.json").write_text(json_text(content, indent=1))


_IMPORT = f"--out {OUT} --tokenizer numbers"
_MEASURE = f"--data {ROOT / 'LICENSE'} --limit 2 --draws 1 --device cpu"
_SAMPLE = "--num 1 --steps 2 --length 8 --device cpu"
KINDS = {
    "run": Kind(make_run, (f"sample run {_SAMPLE}", f"eval run {_MEASURE}"), "*", r"step-\d+/"),
    "distilled": Kind(make_distilled, (f"sample run --round 1 {_SAMPLE}", f"eval run {_MEASURE}"), "*", r"step-\d+/"),
    "published": Kind(
        make_published, (f"eval model {_MEASURE}",), "model/*", r"model\.safetensors|duality_tokenizer\.json"
    ),
    "safetensors": Kind(partial(make_released, layout="folder"), (f"import model {_IMPORT}",), "model/*"),
    "parts": Kind(partial(make_released, layout="parts"), (f"import model {_IMPORT}",), "model/*"),
    "ckpt": Kind(partial(make_released, layout="ckpt"), (f"import model.ckpt {_IMPORT}",), "*.ckpt", "ckpt"),
    "stream": Kind(partial(make_table, name="t.arrow"), ("data show t.arrow",), "*"),
    "feather": Kind(partial(make_table, name="t.feather"), ("data show t.feather",), "*"),
    "parquet": Kind(partial(make_table, name="t.parquet"), ("data show t.parquet",), "*"),
    "store": Kind(make_store, ("data show STORE",), "*", r"\.bin$"),
    "trace": Kind(make_trace, (f"trace trace.json --html {OUT}.html",), "*"),
    "quality": Kind(make_quality, (f"plot quality.json --out {OUT}.png",), "*"),
}


# --- what a command makes of them


def in_process(work: Callable[[], int], output: Path, errors: Path) -> int:
    """The exit code of some work in a process of its own, whose time and memory are bounded; below 0 for a signal."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        torch.set_num_threads(1)
        for number, path in ((1, output), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(PATIENCE)  # which ends also what is not Python
        code = work()
    except SystemExit as error:  # the parser's own errors
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Fuzz:
    """The undamaged folders below ``home``, and what each command makes of them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.results: dict[str, list[Outcome]] = {}

    def build(self, name: str) -> None:
        """Make the folder of a kind, in a process of its own, and note what each command makes of it."""
        kind, place, words = KINDS[name], self.home / name, self.home / "words"
        place.mkdir()
        code = in_process(lambda: int(kind.make(place) is not None), words, words)
        assert code == 0, f"{name} cannot be made: {words.read_text()}"
        self.results[name] = [self.run(place, command) for command in kind.commands]
        assert all(outcome[0] == "accepted" for outcome in self.results[name]), self.results[name]

    def run(self, folder: Path, command: str) -> Outcome:
        """What a command makes of a copy of a folder."""
        work = self.home / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder, work)
        store = next((path.name for path in work.iterdir() if path.is_dir()), "")
        arguments = [store if word == "STORE" else word for word in command.split()]
        before, streams = checksums(work), (self.home / "stdout", self.home / "stderr")

        def here() -> int:
            os.chdir(work)
            return main(arguments)

        code, after = in_process(here, *streams), checksums(work)
        new = {
            name: after.get(name, "") for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        }
        output, errors = (path.read_text(encoding="utf-8", errors="replace") for path in streams)
        return judge(code, output, errors, new)

    def case(self, number: int, seed: int, names: Sequence[str]) -> tuple[str, Outcome, str]:
        """The kind of a case, what came of it, and what was damaged."""
        draw, name = random.Random(f"{seed} {number}"), names[number % len(names)]
        kind, place = KINDS[name], self.home / "damaged"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.home / name, place)
        files = sorted(
            path for path in place.rglob("*") if path.is_file() and path.relative_to(place).match(kind.files)
        )
        file = draw.choice([path for path in files if not path.name.startswith(".")])
        damage, data = damaged(file.read_bytes(), draw)
        file.write_bytes(data)
        which = draw.randrange(len(kind.commands))
        outcome, relative = self.run(place, kind.commands[which]), str(file.relative_to(place))
        if outcome[0] == "accepted":
            checked = damage != repack_member.__name__ and re.search(kind.checked, relative) is not None
            same = outcome == self.results[name][which]
            outcome = ("same" if same else "silent" if checked else "other", "")
        return name, outcome, f"{relative}, {damage}, {kind.commands[which].split()[0]}"


def judge(code: int, output: str, errors: str, new: Mapping[str, str]) -> Outcome:
    """What an ended process means, before its result is compared: accepted, refused, or a fault and why."""
    lines = [line for line in errors.splitlines() if line.startswith(ERROR)]
    if code < 0:
        return "hang" if code == -signal.SIGALRM else "signal", f"{code} {errors[-300:]}"
    if "internal error" in errors or "Traceback" in errors or code not in (0, 2):
        return "internal", f"exit code {code}: {errors[-600:]}"
    if "memory of this machine" in errors:
        return "memory", errors[-300:]
    if code == 0:
        digest = hashlib.sha256(json.dumps([output, sorted(new.items())]).encode()).hexdigest()
        return "older" if _OLDER in errors else "accepted", digest
    if len(lines) != 1 or not errors.rstrip("\n").endswith(lines[0]) or len(lines[0]) > LONGEST_LINE or output:
        return "words", f"{len(lines)} lines: {errors[:1500]!r} and on stdout {output[:300]!r}"
    return ("left", f"{sorted(new)} after {lines[0][:300]}") if new else ("refused", lines[0])


def checksums(folder: Path) -> dict[str, str]:
    """The files and folders below a folder and the checksums of the files, but for hidden ones and the commit."""
    paths = [path for path in folder.rglob("*") if not path.name.startswith(".") and path.name != "env.json"]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(paths)
    }


def run_all(count: int, seed: int, chosen: Sequence[str]) -> int:
    """Damage ``count`` files, and print every fault and what came of each kind; the exit code says if there are faults.

    All is imported and nothing computed before the processes are made, so that they begin at once and without threads.
    """
    assert all(COMMANDS.values())
    names = chosen or tuple(KINDS)
    counts = {name: Counter[str]() for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DUALITY_CACHE"] = f"{scratch}/cache"
        fuzz = Fuzz(Path(scratch))
        for name in names:
            fuzz.build(name)
        for number in range(count):
            name, (what, seen), how = fuzz.case(number, seed, names)
            counts[name][what] += 1
            if what not in ALLOWED:
                print(f"case {number} of seed {seed}: {name}, {how}: {what}: {seen}", flush=True)
    every = sum(counts.values(), Counter[str]())
    for name, each in {**counts, f"all {count}": every}.items():
        print(f"{name + ':':<13}" + ", ".join(f"{what} {each[what]}" for what in sorted(each)))
    return int(not every.keys() <= {*ALLOWED})


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:3]]
    sys.exit(run_all(numbers[0] if numbers else 100, numbers[1] if len(numbers) > 1 else 0, sys.argv[3:]))
