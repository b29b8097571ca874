"""Six walks through the code, profiled: how often a reader who follows a command has to change the room.

    python experiments/walks.py                       all six, as a table
    python experiments/walks.py --list train          the functions of one walk, in the order of their first calls

Each walk is one command in a process of its own, on a network of 32 x 2 and a text of 11 kB, with an empty cache: the
commands are those of docs/architecture.md. A function counts when it is called first; one inside another is a part of
it. What runs while a module is imported does not count.

functions     how many functions of the library are called
changes       how often the next function of this order is in another room, a folder or a module of ``src/duality``
above         the same without the ground floor, whose formulas call each other across its rooms by design
frames        of a training: the frames of the library from the command to its objective in the first step, both counted

The script uses the command line alone. To measure another commit: PYTHONPATH=ITS_SRC python experiments/walks.py.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence, Set
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WALKS = ("train", "sample", "eval", "distill", "studio", "import")
_SMALL = (
    "data.tokenizer=bytes",
    "data.length=32",
    "backbone=mini",
    "backbone.depth=2",
    "backbone.heads=2",
    "backbone.width=32",
    "training.batch_size=8",
    "training.log_every=5",
    "training.eval_every=10",
    "training.save_every=10",
)
_ASSIGNMENTS = tuple(word for each in _SMALL for word in ("--set", each))
_PORT = 8397
GROUND_FLOOR = {
    *("protocols.py", "noise.py", "registry.py", "ranks.py", "diffusion", "fused", "networks", "denoisers"),
    *("objectives", "samplers", "methods"),
}


def library() -> Path:
    """The folder of the library that is measured."""
    spec = find_spec("duality")
    assert spec is not None, "the library is not installed"
    return Path(str(spec.origin)).parent


class Recorder:
    """The functions of the library in the order of their first calls, and the frames above an objective."""

    def __init__(self) -> None:
        self.root = str(library()) + os.sep
        self.order: list[tuple[str, str]] = []
        self.stack: list[str] = []
        self._seen: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """What ``sys.setprofile`` calls."""
        code = frame.f_code
        if event != "call" or code in self._seen or not code.co_filename.startswith(self.root):
            return
        if not code.co_flags & inspect.CO_OPTIMIZED or "<locals>" in code.co_qualname or "<" in code.co_name:
            return
        stack = list(self._frames(frame))
        if any(name.endswith("<module>") for name in stack):
            return
        self._seen.add(code)
        module = code.co_filename.removeprefix(self.root)
        self.order.append((module, code.co_qualname))
        if not self.stack and module.startswith("objectives/") and code.co_name == "__call__":
            self.stack = stack[::-1]

    def _frames(self, frame: FrameType | None) -> list[str]:
        """The frames of the library from this one upwards."""
        found = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(self.root):
                found.append(f"{code.co_filename.removeprefix(self.root)}:{code.co_qualname}")
            frame = frame.f_back
        return found


def count_changes(order: Iterable[Sequence[str]], left_out: Set[str] = frozenset()) -> int:
    """How often the room changes along a walk of modules and functions, without some rooms."""
    rooms = [room for module, _ in order if (room := module.partition(os.sep)[0]) not in left_out]
    return sum(before != after for before, after in zip(rooms, rooms[1:]))


def record(arguments: list[str], answer: Path, besides: Callable[[], None] | None = None) -> None:
    """Run one command under the profiler and write what was found."""
    from duality.cli.main import main

    found = Recorder()
    if besides is not None:
        threading.Thread(target=besides, daemon=True).start()
    threading.setprofile(found)
    sys.setprofile(found)
    code = main(arguments)
    sys.setprofile(None)
    threading.setprofile(None)
    content = {"code": code, "order": found.order, "stack": found.stack}
    answer.write_text(json.dumps(content), encoding="utf-8")


def generate_and_stop() -> None:
    """Ask the studio for a text once, as its page does, and end it."""
    sys.setprofile(None)
    address = f"http://127.0.0.1:{_PORT}/api/generate"
    body = json.dumps({"run": os.environ["WALKED_RUN"], "steps": 4, "stream": True}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    for _ in range(100):
        time.sleep(0.2)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                response.read()
            break
        except urllib.error.HTTPError as error:
            print(error.read().decode(), file=sys.stderr)
            break
        except OSError:
            continue
    os.kill(os.getpid(), signal.SIGINT)


def commands(home: Path) -> dict[str, list[str]]:
    """The command of each walk; a command finds what those before it have made."""
    run, text = str(home / "run"), str(home / "text.txt")
    return {
        "train": ["train", "duo-laptop", "--data", text, "--out", run, "--steps", "20", *_ASSIGNMENTS],
        "sample": ["sample", run, "--prompt", "The ", "--top-p", "0.9", "--steps", "4"],
        "eval": ["eval", run],
        "distill": ["distill", run, "--rounds", "2", "--round-steps", "5", "--out", str(home / "few")],
        "studio": ["studio", str(home), "--port", str(_PORT)],
        "import": ["import", str(home / "released"), "--out", str(home / "imported"), "--tokenizer", run],
    }


def measure() -> dict[str, Any]:
    """All walks, each in a new process."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        licence = Path(__file__).resolve().parents[1] / "LICENSE"
        (home / "text.txt").write_bytes(licence.read_bytes())
        environment = {**os.environ, "DUALITY_CACHE": str(home / "cache"), "WALKED_RUN": "run", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(library().parent), os.environ.get("PYTHONPATH", "")])
        for walk, arguments in commands(home).items():
            if walk == "import":
                export = ["export", str(home / "run"), "--out", str(home / "released")]
                subprocess.run([sys.executable, "-m", "duality", *export], env=environment, check=True)
            answer = home / f"{walk}.json"
            line = [sys.executable, __file__, "--walk", walk, str(answer), *arguments]
            subprocess.run(line, env=environment, check=True, stdout=subprocess.DEVNULL)
            found[walk] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Print the table, or one walk."""
    if sys.argv[1:2] == ["--walk"]:
        _, _, walk, answer, *arguments = sys.argv
        record(arguments, Path(answer), generate_and_stop if walk == "studio" else None)
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", choices=WALKS, help="print the functions of one walk")
    chosen = parser.parse_args().list
    found = measure()
    if chosen is not None:
        for module, name in found[chosen]["order"]:
            print(f"{module:40} {name}")
        print("the frames above the first objective:", *found[chosen]["stack"], sep="\n")
        return
    print(f"{'walk':10}{'functions':>10}{'changes':>10}{'above':>10}{'frames':>10}")
    for walk, content in found.items():
        order, frames = content["order"], len(content["stack"]) if walk in ("train", "distill") else "-"
        above = count_changes(order, GROUND_FLOOR)
        print(f"{walk:10}{len(order):>10}{count_changes(order):>10}{above:>10}{frames:>10}")


if __name__ == "__main__":
    main()
